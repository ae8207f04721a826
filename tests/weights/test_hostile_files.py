"""Weight files and paths as nobody should give them: other files, claims without end, random and mutated bytes."""

from __future__ import annotations

import os
import stat
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from estimator.contract.errors import InvalidJob
from estimator.specs.architecture import architecture
from estimator.weights.checkpoint import Checkpoint
from estimator.weights.dtypes import safetensors_bits
from estimator.weights.files import MOST_HEADER_BYTES, MOST_MARKS
from estimator.weights.read import read_checkpoint
from estimator.weights.safetensors import read_safetensors
from tests import fuzz_weights
from tests.weight_files import (
    ARRAY,
    ENTRIES,
    LLAMA,
    STRING,
    UINT8,
    UINT32,
    gguf_bytes,
    gguf_header,
    packed,
    safetensors_bytes,
    text,
    written,
)
from tests.weights.made import gguf, pair, part, refused


def test_files_are_known_by_what_they_begin_with(tmp_path: Path) -> None:
    assert read_checkpoint(written(tmp_path / "5ad3b1", safetensors_bytes())).format == "safetensors"
    assert read_checkpoint(str(written(tmp_path / "9c0e42", gguf_bytes()))).format == "gguf"
    assert read_checkpoint(written(tmp_path / "wrong.safetensors", gguf_bytes())).format == "gguf"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.safetensors")
    return folder / "pipe.safetensors"


def loop(folder: Path) -> Path:
    (folder / "loop.gguf").symlink_to(folder / "loop.gguf")
    return folder / "loop.gguf"


def two(folder: Path) -> Path:
    written(folder / "a.safetensors", safetensors_bytes())
    part(folder, 1, 2)
    return folder


def several(folder: Path) -> Path:
    for name in "abcdefg":
        written(folder / f"{name}.gguf", gguf_bytes())
    return folder


def nested_folder(folder: Path) -> Path:
    (folder / "m.safetensors").mkdir()
    return folder


PATHS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "nothing": (lambda folder: folder / "none.gguf", "there is no such file"),
    "a NUL": (lambda folder: folder / "a\0b", "there is no such file"),
    "a name too long": (lambda folder: folder / ("a" * 300), "cannot be read: File name too long"),
    "an empty folder": (lambda folder: folder, "is a folder without weights; give a .safetensors file"),
    "a folder of two": (two, "is a folder with 2 checkpoints ('a.safetensors', 'm-00001-of-00002.gguf'); name one of them"),
    "a folder of several": (several, "is a folder with 7 checkpoints ('a.gguf', 'b.gguf', 'c.gguf', 'd.gguf', 'e.gguf', …)"),
    "a folder for a file": (nested_folder, "m.safetensors: is a folder; give a file in it"),
    "a pipe": (pipe, "is not a regular file"),
    "a loop": (loop, "there is no such file"),
    "a zip": (lambda folder: written(folder / "model.bin", b"PK\3\4" + bytes(90)), "looks like a file of torch.save"),
    "a pickle": (lambda folder: written(folder / "model.pt", b"\x80\2" + bytes(90)), "looks like a file of torch.save"),
    "something else": (lambda folder: written(folder / "model.onnx", bytes(90)), "is neither safetensors nor GGUF"),
    "a small file": (lambda folder: written(folder / "model.onnx", b""), "is neither safetensors nor GGUF"),
}


@pytest.mark.parametrize("why", PATHS)
def test_other_paths_are_refused(why: str, tmp_path: Path) -> None:
    build, message = PATHS[why]
    (tmp_path / "inner").mkdir()
    refused(build(tmp_path / "inner"), message)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = written(tmp_path / "model.safetensors", safetensors_bytes())
    path.chmod(0)
    refused(path, "cannot be read: Permission denied")
    path.chmod(stat.S_IRUSR)


def test_no_permission_is_refused_whoever_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    path = written(tmp_path / "model.safetensors", safetensors_bytes())
    monkeypatch.setattr(Path, "open", denied)
    refused(path, "cannot be read: Permission denied")


def sparse(path: Path, header: bytes, nbytes: int) -> Path:
    """A file that is as long as its header and its weights, but has nothing in it but the header."""
    written(path, header)
    os.truncate(path, len(header) + nbytes)
    return path


LARGE = 10 * 2**30
LARGE_SAFETENSORS = safetensors_bytes({"x": {"dtype": "BF16", "shape": [5, 2**30], "data_offsets": [0, LARGE]}}, 0)
LARGE_GGUF = gguf_header(LLAMA, [("x", "F16", (2**30, 5))])


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_only_the_header_is_read(name: str, tmp_path: Path) -> None:
    """Of 10 GiB: memory stays below what the first read may take, twice over for a cut end."""
    header = LARGE_GGUF if name.endswith("gguf") else LARGE_SAFETENSORS
    path = sparse(tmp_path / name, header, LARGE)
    read_checkpoint(path)
    tracemalloc.start()
    found = read_checkpoint(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.total_bytes, found.parameters) == (LARGE, LARGE // 2)
    assert peak < 2**20 + 2**18
    os.truncate(path, LARGE)
    refused(path, "is truncated")


CLAIMS = {
    "a header of 100 MB": safetensors_bytes(b"{", length=MOST_HEADER_BYTES),
    "commas": safetensors_bytes(b"{" + b"," * MOST_MARKS),
    "a string of 4 GiB": pair(STRING, struct.pack("<Q", 2**32)),
    "an array of 4 GiB": pair(ARRAY, struct.pack("<IQ", UINT8, 2**32)),
    "tensors without end": gguf(count=(2**28, 0)),
    "pairs without end": gguf(count=(0, 2**28)),
}


@pytest.mark.parametrize("why", CLAIMS)
def test_claims_cost_nothing(why: str, tmp_path: Path) -> None:
    """A large file that claims much in its first bytes is refused before more is read than a header may have."""
    name = "model.gguf" if CLAIMS[why].startswith(b"GGUF") else "model.safetensors"
    path = sparse(tmp_path / name, CLAIMS[why], LARGE)
    tracemalloc.start()
    with pytest.raises(InvalidJob):
        read_checkpoint(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * MOST_HEADER_BYTES


def outcome(path: Path) -> Checkpoint | None:
    """What is read of a file, or None where it is refused; nothing else may come out."""
    try:
        found = read_checkpoint(path)
    except InvalidJob:
        return None
    architecture(found)
    return found


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["x.safetensors", "x.gguf", "x.safetensors.index.json", "x"]))
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str) -> None:
    outcome(written(tmp_path_factory.getbasetemp() / f"random.{name}", content))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_mutated_headers(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    name, content = fuzz_weights.mutant(seed)
    path = written(tmp_path_factory.getbasetemp() / f"mutant.{name}", content)
    fuzz_weights.judged(path)


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.sampled_from(["F32", "BF16", "F4", "", 2**63, 2**80]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "c", "__metadata__", "é"]), JSONS, max_size=3), st.integers(0, 40))
def test_headers_of_any_json(tmp_path_factory: pytest.TempPathFactory, changed: dict[str, Any], nbytes: int) -> None:
    path = written(tmp_path_factory.getbasetemp() / "any.safetensors", safetensors_bytes({**ENTRIES, **changed}, nbytes))
    outcome(path)


shapes = st.lists(st.integers(0, 4), max_size=3)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(safetensors_bits())), shapes), max_size=5), st.booleans())
def test_what_the_library_reads_is_read(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, list[int]]], cut: bool
) -> None:
    """The library and this reader agree on every file of any types and shapes: what is in it, and whether it is whole."""
    entries, at = {}, 0
    for number, (dtype, shape) in enumerate(drawn):
        nbytes = -(-torch.Size(shape).numel() * safetensors_bits()[dtype] // 8)
        entries[str(number)] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    path = written(tmp_path_factory.getbasetemp() / "drawn.safetensors", safetensors_bytes(entries, at - cut if at else 0))
    found = outcome(path)
    try:
        theirs = fuzz_weights.by_the_library(path)
    except SafetensorError:
        assert found is None
    else:
        assert found is not None
        assert theirs == {tensor.name: (tensor.dtype, tensor.shape) for tensor in found.tensors}


def test_packed_values_are_read_as_they_were_packed(tmp_path: Path) -> None:
    """The smallest header by hand, byte for byte, with no help of the writer that the other tests use."""
    raw = b"GGUF\x03\0\0\0" + bytes(8) + b"\x01" + bytes(7) + b"\x01" + bytes(7) + b"k" + b"\x04\0\0\0" + b"\x2a\0\0\0"
    assert raw == b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", UINT32) + packed(UINT32, 42)
    assert read_checkpoint(written(tmp_path / "k.gguf", raw)).metadata == {"k": 42}
    assert read_safetensors(written(tmp_path / "k.safetensors", b"\x02" + bytes(7) + b"{}")).tensors == ()
