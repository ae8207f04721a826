"""Headers of safetensors files and indexes: against the library that writes them, and broken in every way that came to mind."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from estimator.weights.dtypes import safetensors_bits
from estimator.weights.files import MOST_HEADER_BYTES, MOST_MARKS
from estimator.weights.read import read_checkpoint
from tests.weight_files import (
    ENTRIES,
    safetensors_bytes,
    written,
)
from tests.weights.made import refused

STORED = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float4_e2m1fn_x2: "F4",
}
"""What the library calls torch's types; it stores each of torch's pairs of 4-bit numbers as two elements."""


def zeros(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    size = torch.empty((), dtype=dtype).element_size()
    return torch.zeros((*shape[:-1], shape[-1] * size), dtype=torch.uint8).view(dtype)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_every_type_that_torch_saves(dtype: torch.dtype, tmp_path: Path) -> None:
    save_file({"one": zeros(dtype, 3, 4), "other": torch.zeros(5)}, tmp_path / "model.safetensors", metadata={"made": "here"})
    found = read_checkpoint(tmp_path / "model.safetensors")
    one = next(tensor for tensor in found.tensors if tensor.name == "one")
    packed_pairs = 2 if dtype is torch.float4_e2m1fn_x2 else 1
    assert (one.dtype, one.shape) == (STORED[dtype], (3, 4 * packed_pairs))
    assert one.elements == 12 * packed_pairs
    assert one.nbytes == 12 * torch.empty((), dtype=dtype).element_size()
    assert found.metadata == {"made": "here"}
    assert found.parameters == one.elements + 5
    assert found.total_bytes == one.nbytes + 20


def test_every_type_of_safetensors_is_known_to_the_library(tmp_path: Path) -> None:
    """The library opens a file of each type of the table, and of no other."""
    for dtype, bits in safetensors_bits().items():
        entries = {"x": {"dtype": dtype, "shape": [8], "data_offsets": [0, bits]}}
        path = written(tmp_path / "x.safetensors", safetensors_bytes(entries, bits))
        with safe_open(path, "pt") as opened:
            assert opened.get_slice("x").get_dtype() == dtype
        assert read_checkpoint(path).total_bytes == bits
    with pytest.raises(SafetensorError, match="expected one of") as listed, safe_open(_unknown(tmp_path), "pt"):
        pass
    assert {name for name in safetensors_bits() if f"`{name}`" in str(listed.value)} == set(safetensors_bits())
    assert str(listed.value).count("`") == 2 * (len(safetensors_bits()) + 1)


def _unknown(folder: Path) -> Path:
    entries = {"x": {"dtype": "F99", "shape": [8], "data_offsets": [0, 8]}}
    return written(folder / "unknown.safetensors", safetensors_bytes(entries, 8))


def test_where_tensors_are(tmp_path: Path) -> None:
    """Bytes at a tensor's offset are its own."""
    values = {"first": torch.arange(6).view(2, 3), "second": torch.tensor([1.5, 2.5])}
    save_file(values, tmp_path / "model.safetensors")
    raw = (tmp_path / "model.safetensors").read_bytes()
    for tensor in read_checkpoint(tmp_path).tensors:
        mine = torch.frombuffer(bytearray(raw[tensor.offset : tensor.offset + tensor.nbytes]), dtype=values[tensor.name].dtype)
        assert torch.equal(mine.view(tensor.shape), values[tensor.name])


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("sharded")
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "vocab_size": 100,
    }
    model = LlamaForCausalLM(LlamaConfig(**sizes)).bfloat16()
    model.save_pretrained(folder, max_shard_size="20KB")
    return folder, model


def copied(folder: Path, target: Path, without: tuple[str, ...] = ()) -> Path:
    for file in folder.iterdir():
        if file.name not in without:
            (target / file.name).write_bytes(file.read_bytes())
    return target


def test_shards_as_transformers_saves_them(sharded: tuple[Path, LlamaForCausalLM]) -> None:
    folder, model = sharded
    found = read_checkpoint(folder)
    assert found == read_checkpoint(folder / "model.safetensors.index.json")
    assert len(found.files) > 2
    assert not found.missing
    assert {tensor.name: tensor.shape for tensor in found.tensors} == {
        name: tuple(p.shape) for name, p in model.named_parameters()
    }
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.total_bytes == found.declared_bytes == 2 * found.parameters
    assert found.bytes_by_dtype == {"BF16": found.total_bytes}
    assert found.metadata == {"format": "pt"}


def test_shards_that_are_missing(sharded: tuple[Path, LlamaForCausalLM], tmp_path: Path) -> None:
    whole = read_checkpoint(sharded[0])
    found = read_checkpoint(copied(sharded[0], tmp_path, whole.files[1:2]))
    assert found.missing == whole.files[1:2]
    assert (found.parameters, found.bytes_by_dtype) == (None, None)
    assert found.total_bytes == whole.total_bytes
    assert {tensor.file for tensor in found.tensors} == {*whole.files} - {*found.missing}


def test_an_index_alone_knows_the_bytes(sharded: tuple[Path, LlamaForCausalLM], tmp_path: Path) -> None:
    whole = read_checkpoint(sharded[0])
    found = read_checkpoint(copied(sharded[0], tmp_path, whole.files))
    assert (found.tensors, found.files, found.missing) == ((), (), whole.files)
    assert (found.parameters, found.total_bytes) == (None, whole.total_bytes)


def index(weight_map: Any, metadata: Any = None) -> bytes:
    return json.dumps({"metadata": metadata, "weight_map": weight_map}).encode()


@pytest.mark.parametrize(("said", "expected"), [({}, None), (None, None), ({"total_size": 40.125}, 41), ({"total_size": 0}, 0)])
def test_what_an_index_declares(said: Any, expected: int | None, tmp_path: Path) -> None:
    path = written(tmp_path / "model.safetensors.index.json", index({"a": "missing.safetensors"}, said))
    assert read_checkpoint(path).total_bytes == expected


BAD_INDEX: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not JSON"),
    "no object": (b"[]", "not a JSON object"),
    "no map": (b"{}", "has no weight_map"),
    "a list": (index(["a"]), "has no weight_map"),
    "numbers": (index({"a": 1}), "has no weight_map"),
    "a path": (index({"a": "../secret.safetensors"}), "the index's own folder"),
    "another root": (index({"a": "/etc/x.safetensors"}), "the index's own folder"),
    "a drive": (index({"a": "C:x.safetensors"}), "the index's own folder"),
    "a NUL": (index({"a": "\0.safetensors"}), "the index's own folder"),
    "half a pair": (index({"a": "\ud800.safetensors"}), "the index has half a surrogate pair"),
    "pickles": (index({"a": "pytorch_model-00001-of-00002.bin"}), "save the model as safetensors"),
    "bytes below zero": (index({}, {"total_size": -1}), "is '-1'; it is a number of bytes"),
    "bytes without end": (b'{"weight_map": {}, "metadata": {"total_size": 1e999}}', "is 'inf'; it is a number of bytes"),
    "bytes in words": (index({}, {"total_size": "many"}), "is 'many'; it is a number of bytes"),
    "true bytes": (index({}, {"total_size": True}), "is 'True'; it is a number of bytes"),
    "too many shards": (index({str(i): f"{i}.safetensors" for i in range(100_000)}), "names 100,000 files"),
    "a tensor that is not there": (index({"a": "x.safetensors", "z": "x.safetensors"}), "x.safetensors lacks the tensor 'z'"),
    "a tensor twice": (index({"a": "x.safetensors", "b": "y.safetensors"}), "tensor 'a' is both in x.safetensors and in y.saf"),
    "a broken shard": (index({"a": "broken.safetensors"}), "ends after 3 bytes"),
}


@pytest.mark.parametrize("why", BAD_INDEX)
def test_a_bad_index_is_refused(why: str, tmp_path: Path) -> None:
    content, message = BAD_INDEX[why]
    for name in ("x", "y"):
        written(tmp_path / f"{name}.safetensors", safetensors_bytes())
    written(tmp_path / "broken.safetensors", b"abc")
    refused(written(tmp_path / "model.safetensors.index.json", content), message)


def entry(**changed: Any) -> dict[str, Any]:
    return {**ENTRIES, "a": {**ENTRIES["a"], **changed}}


BAD_SAFETENSORS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "half a length": (b"\1\0\0", "ends after 3 bytes"),
    "only a length": (struct.pack("<Q", 10), "ends at byte 8, within its header (10 bytes)"),
    "a header that is cut": (safetensors_bytes()[:100], "ends at byte 100"),
    "a header longer than allowed": (safetensors_bytes(length=MOST_HEADER_BYTES + 1), "claims a header of 100,000,001 bytes"),
    "a length of ones": (b"\xff" * 64, "claims a header of 18,446,744,073,709,551,615 bytes"),
    "no header": (struct.pack("<Q", 0), "does not begin with '{'"),
    "spaces before it": (safetensors_bytes(b'  {"a":1}'), "does not begin with '{'"),
    "not JSON": (safetensors_bytes(b'{"a": '), "its header is not JSON"),
    "not UTF-8": (safetensors_bytes(b'{"\xff": 1}'), "not text in UTF-8 (byte 2 of it)"),
    "more than JSON": (safetensors_bytes(b"{} {}"), "its header is not JSON"),
    "not a number": (safetensors_bytes(b'{"a": NaN}'), "has NaN, which is not JSON"),
    "a number of many digits": (safetensors_bytes(b'{"a": %s}' % (b"9" * 5000)), "thousands of digits"),
    "deep": (safetensors_bytes(b'{"a":' * 100_000), "nested too deeply"),
    "brackets without end": (safetensors_bytes(b"{" + b"[" * (MOST_MARKS + 1)), "brackets and commas"),
    "a name twice": (safetensors_bytes(b'{"a": 1, "b": 2, "a": 3}'), "has 'a' twice"),
    "a key of an entry twice": (safetensors_bytes(b'{"a": {"dtype": "F32", "dtype": "F32"}}'), "has 'dtype' twice"),
    "half a pair in a name": (safetensors_bytes(b'{"\\ud800": 1}'), "its header has half a surrogate pair"),
    "half a pair in metadata": (
        safetensors_bytes(b'{"__metadata__": {"a": "\\udfff"}}', 0),
        "its header has half a surrogate pair",
    ),
    "half a pair in a key": (safetensors_bytes(b'{"a": {"\\udfff": 1}}', 0), "its header has half a surrogate pair"),
    "metadata of numbers": (safetensors_bytes({"__metadata__": {"a": 1}}, 0), "not a mapping of strings to strings"),
    "metadata as a list": (safetensors_bytes({"__metadata__": []}, 0), "not a mapping of strings to strings"),
    "an entry as a list": (safetensors_bytes({"a": ["F32", [1], [0, 4]]}, 4), "'a' is not described by a JSON object"),
    "no dtype": (safetensors_bytes(entry(dtype=None)), "'a' has no dtype; it is one of BOOL"),
    "an unknown dtype": (safetensors_bytes(entry(dtype="F12")), "'a' has the unknown dtype 'F12'; known are BOOL, F4"),
    "an endless dtype": (safetensors_bytes(entry(dtype="F" * 10_000)), "F…'; known are"),
    "no shape": (safetensors_bytes(entry(shape=None)), "'a' has no shape"),
    "a size below zero": (safetensors_bytes(entry(shape=[-2, -3])), "'a' has no shape"),
    "a broken size": (safetensors_bytes(entry(shape=[2.0, 3])), "'a' has no shape"),
    "a true size": (safetensors_bytes(entry(shape=[True, 6])), "'a' has no shape"),
    "too many elements": (safetensors_bytes(entry(shape=[2**62, 2**62])), "'a' has 2^63 elements or more"),
    "a product without end": (safetensors_bytes(entry(shape=[2**62] * 100_000)), "'a' has 2^63 elements or more"),
    "one offset": (safetensors_bytes(entry(data_offsets=[0])), "'a' has no data_offsets"),
    "offsets backwards": (safetensors_bytes(entry(data_offsets=[24, 0])), "'a' has no data_offsets"),
    "a size that does not match": (safetensors_bytes(entry(shape=[2, 4])), "24 bytes, but 8 elements of F32 are 32 bytes"),
    "half a byte": (safetensors_bytes(entry(dtype="F4", shape=[3])), "3 elements of 4 bits, which are no whole number of bytes"),
    "overlap": (safetensors_bytes({**ENTRIES, "d": {"dtype": "U8", "shape": [8], "data_offsets": [20, 28]}}), "begins within"),
    "twice the same bytes": (safetensors_bytes({**ENTRIES, "d": ENTRIES["b"]}), "begins within tensor 'b', at byte 24"),
    "a hole": (safetensors_bytes({name: ENTRIES[name] for name in ("a", "c")}), "bytes 24 to 32 of its data belong to no tensor"),
    "a hole before": (safetensors_bytes({"c": ENTRIES["c"]}), "bytes 0 to 32 of its data belong to no tensor"),
    "cut weights": (safetensors_bytes()[:-1], "is truncated: its tensors end at byte"),
    "more than weights": (safetensors_bytes() + b"PK", "has 2 bytes after its last tensor"),
}


@pytest.mark.parametrize("why", BAD_SAFETENSORS)
def test_broken_safetensors_are_refused(why: str, tmp_path: Path) -> None:
    content, message = BAD_SAFETENSORS[why]
    refused(written(tmp_path / "model.safetensors", content), message)


@pytest.mark.parametrize("why", sorted(set(BAD_SAFETENSORS) - {"an entry as a list"}))
def test_the_library_refuses_them_too(why: str, tmp_path: Path) -> None:
    """But for the list, which its parser takes for an object; the format's description does not."""
    path = written(tmp_path / "model.safetensors", BAD_SAFETENSORS[why][0])
    with pytest.raises((SafetensorError, OSError)), safe_open(path, "pt"):
        pass


def test_safetensors_with_odds_and_ends(tmp_path: Path) -> None:
    """No tensors, no metadata, padding, keys of later versions, dimensions of nothing: all within the format."""
    empty = read_checkpoint(written(tmp_path / "empty.safetensors", safetensors_bytes(b"{}      ", 0)))
    assert (empty.parameters, empty.total_bytes, empty.bytes_by_dtype) == (0, 0, {})
    found = read_checkpoint(written(tmp_path / "x.safetensors", safetensors_bytes(entry(later=[1]) | {"__metadata__": None})))
    assert [tensor.name for tensor in found.tensors] == ["a", "b", "c", "none"]
    assert found.parameters == 11
    assert found.metadata == {}
