"""Headers of weight files: against the libraries that write them, and broken in every way that came to mind."""

from __future__ import annotations

import json
import os
import stat
import struct
import tracemalloc
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from estimator.contract.errors import InvalidJob
from estimator.contract.reading import load_yaml
from estimator.specs.architecture import architecture
from estimator.weights import Checkpoint, read_checkpoint
from estimator.weights.cursor import MOST_VALUES
from estimator.weights.dtypes import FILE, ggml_removed, ggml_types, safetensors_bits
from estimator.weights.files import MOST_HEADER_BYTES, MOST_MARKS
from estimator.weights.safetensors import read_safetensors
from tests import fuzz_weights
from tests.weight_files import (
    ARRAY,
    BOOL,
    ENTRIES,
    INT32,
    LLAMA,
    NUMBERS,
    STRING,
    TENSORS,
    TYPES,
    UINT8,
    UINT16,
    UINT32,
    Pair,
    gguf_bytes,
    gguf_header,
    info,
    packed,
    safetensors_bytes,
    text,
    written,
)

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


def refused(path: Path, message: str) -> None:
    with pytest.raises(InvalidJob) as error:
        read_checkpoint(path)
    assert message in str(error.value)
    assert error.value.where.startswith(str(path.parent))
    assert len(str(error.value)) < 1000
    str(error.value).encode()


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


def test_the_tables_of_types_say_where_they_were_read() -> None:
    for table in load_yaml(FILE).values():
        assert set(table) <= {"unit", "source", "as_of", "types", "removed"}
        assert len(table["source"]) > 40
        assert isinstance(table["as_of"], date)
    numbers = list(ggml_types())
    assert numbers == sorted(set(numbers))
    assert not set(numbers) & set(ggml_removed())
    assert sorted([*numbers, *ggml_removed()]) == list(range(43))  # GGML_TYPE_COUNT


BITS_PER_WEIGHT = {"Q4_0": 4.5, "Q5_0": 5.5, "Q8_0": 8.5, "Q2_K": 2.625, "Q3_K": 3.4375, "Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625}
BITS_PER_WEIGHT |= {"IQ2_XXS": 2.0625, "IQ2_XS": 2.3125, "IQ2_S": 2.5625, "IQ3_XXS": 3.0625, "IQ3_S": 3.4375, "IQ1_S": 1.5625}
BITS_PER_WEIGHT |= {"IQ1_M": 1.75, "TQ1_0": 1.6875, "TQ2_0": 2.0625, "MXFP4": 4.25, "NVFP4": 4.5, "IQ4_XS": 4.25, "IQ4_NL": 4.5}
"""As the comments beside the blocks in ggml-common.h, and llama.cpp's quantize tool, name them."""


@pytest.mark.parametrize("name", BITS_PER_WEIGHT)
def test_blocks_have_the_bits_that_they_are_known_for(name: str) -> None:
    block = ggml_types()[TYPES[name]]
    assert 8 * block.nbytes / block.elements == BITS_PER_WEIGHT[name]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [1, 32, 4096])
def test_gguf_as_it_was_written(version: int, alignment: int, tmp_path: Path) -> None:
    found = read_checkpoint(written(tmp_path / "model.gguf", gguf_bytes(version=version, alignment=alignment)))
    assert found.format == "gguf"
    assert [(t.name, t.dtype, t.shape, t.elements, t.nbytes) for t in found.tensors] == [
        ("token_embd.weight", "Q4_K", (3, 256), 768, 432),
        ("output_norm.weight", "F32", (256,), 256, 1024),
        ("blk.0.x", "F16", (3, 5), 15, 30),
    ]
    assert all(tensor.offset % alignment == 0 for tensor in found.tensors)
    assert found.parameters == 1039
    assert found.total_bytes == 1486
    assert found.bytes_by_dtype == {"F32": 1024, "Q4_K": 432, "F16": 30}
    assert found.metadata["tokenizer.ggml.tokens"] == ("<s>", "a", "é")
    assert found.metadata["tokenizer.ggml.scores"] == (0.0, -1.0, 0.5)
    assert found.metadata["general.tags"] == (("x",), (1, 2))
    assert found.metadata["some.flags"] == (True, False)


def test_every_type_of_metadata(tmp_path: Path) -> None:
    values: dict[int, Any] = dict.fromkeys(NUMBERS, 1) | {
        1: -1,
        3: -1,
        5: -1,
        11: -(2**63),
        10: 2**64 - 1,
        6: 0.5,
        12: 0.1,
        7: True,
    }
    pairs: list[Pair] = [(f"one.{kind}", kind, value) for kind, value in values.items()]
    pairs += [(f"two.{kind}", ARRAY, (kind, [value, value])) for kind, value in values.items()]
    pairs += [("none", ARRAY, (STRING, [])), ("nothing", ARRAY, (ARRAY, [])), ("empty", STRING, "")]
    found = read_checkpoint(written(tmp_path / "m.gguf", gguf_bytes(pairs, []))).metadata
    for kind, value in values.items():
        assert (found[f"one.{kind}"], found[f"two.{kind}"]) == (value, (value, value))
        assert type(found[f"one.{kind}"]) is type(value)
    assert (found["none"], found["nothing"], found["empty"]) == ((), (), "")


@pytest.mark.parametrize("name", TYPES)
def test_every_type_of_ggml(name: str, tmp_path: Path) -> None:
    block = ggml_types()[TYPES[name]]
    found = read_checkpoint(written(tmp_path / "m.gguf", gguf_bytes([], [("x", name, (2 * block.elements, 3, 1, 2))])))
    assert found.bytes_by_dtype == {name: 12 * block.nbytes}
    assert found.tensors[0].shape == (2, 1, 3, 2 * block.elements)


def test_a_vocabulary_is_a_checkpoint_without_tensors(tmp_path: Path) -> None:
    found = read_checkpoint(written(tmp_path / "vocab.gguf", gguf_bytes(LLAMA, [])))
    assert (found.parameters, found.tensors) == (0, ())
    scalar = read_checkpoint(written(tmp_path / "scalar.gguf", gguf_bytes([], [("x", "F32", ()), ("y", "Q4_0", (0, 3))])))
    assert [(tensor.shape, tensor.nbytes) for tensor in scalar.tensors] == [((), 4), ((3, 0), 0)]


def gguf(pairs: bytes = b"", tensors: bytes = b"", count: tuple[int, int] = (0, 0), version: int = 3) -> bytes:
    """A GGUF file put together by hand: the counts are of tensors and of pairs."""
    return b"GGUF" + struct.pack("<IQQ", version, *count) + pairs + tensors + bytes(64)


def pair(kind: int, value: bytes, key: str = "k") -> bytes:
    """A GGUF file of one entry of metadata."""
    return gguf(text(key) + struct.pack("<I", kind) + value, count=(0, 1))


def one(name: str, kind: int, sizes: tuple[int, ...], offset: int = 0) -> bytes:
    """A GGUF file of one tensor."""
    return gguf(tensors=info(name, kind, sizes, offset), count=(1, 0))


NESTED = struct.pack("<IQ", ARRAY, 1) * 100_000
BAD_GGUF: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "one letter": (b"G", "ends at byte 1, within the letters GGUF"),
    "only letters": (b"GGUF", "ends at byte 4"),
    "other letters": (b"XXXX" + bytes(60), "begins with b'XXXX', not with b'GGUF'"),
    "ggml": (b"lmgg" + bytes(60), "is of a format that ggml had before GGUF"),
    "ggjt": (b"tjgg" + bytes(60), "is of a format that ggml had before GGUF"),
    "version 1": (gguf(version=1), "is GGUF version 1, which is not read"),
    "version 0": (gguf(version=0), "is GGUF version 0; versions 2 and 3 are read"),
    "version 4": (gguf(version=4), "is GGUF version 4; versions 2 and 3 are read"),
    "big-endian": (gguf(version=0x03000000), "is big-endian GGUF, which is not read"),
    "too many tensors": (gguf(count=(2**62, 0)), "claims 4,611,686,018,427,387,904 tensors, more than its 88 bytes can hold"),
    "more tensors than any": (gguf(tensors=bytes(2**21), count=(2**16 + 1, 0)), "claims 65,537 tensors; at most 65,536 are read"),
    "arrays of nothing without end": (pair(ARRAY, struct.pack("<IQ", ARRAY, 2**17) + bytes(12 * 2**17)), "arrays of more than"),
    "too many pairs": (gguf(count=(0, 2**64 - 1)), "claims 18,446,744,073,709,551,615 entries of metadata"),
    "a cut key": (gguf(text("key"), count=(0, 1))[:38], "ends at byte 38"),
    "an endless key": (gguf(struct.pack("<Q", 2**63), count=(0, 1)), "within a key of the metadata"),
    "an empty key": (pair(UINT8, b"\1", ""), "a key without letters"),
    "a key twice": (gguf_bytes([("a", UINT8, 1), ("a", UINT8, 2)], []), "the metadata has 'a' twice"),
    "a key not in UTF-8": (gguf(text(b"\xff") + bytes(20), count=(0, 1)), "a key of the metadata is not text in UTF-8 (byte 32)"),
    "a value not in UTF-8": (pair(STRING, text(b"a\xff")), "'k' is not text in UTF-8"),
    "an endless string": (pair(STRING, struct.pack("<Q", 2**64 - 1)), "within 'k'"),
    "an unknown type": (pair(13, b""), "'k' is of the unknown type 13"),
    "an array of an unknown type": (pair(ARRAY, struct.pack("<IQ", 99, 1)), "'k' is of the unknown type 99"),
    "no array of an unknown type": (pair(ARRAY, struct.pack("<IQ", 99, 0)), "'k' is of the unknown type 99"),
    "an endless array": (pair(ARRAY, struct.pack("<IQ", UINT8, 2**64 - 1)), "more than the file can hold"),
    "an endless array of strings": (pair(ARRAY, struct.pack("<IQ", STRING, 2**60)), "more than the file can hold"),
    "an endless array of nothing known": (pair(ARRAY, struct.pack("<IQ", 99, 2**60)), "arrays of more than 4,194,304 values"),
    "an array longer than any": (
        pair(ARRAY, struct.pack("<IQ", BOOL, MOST_VALUES + 1) + bytes(MOST_VALUES + 1)),
        "arrays of more",
    ),
    "arrays in arrays": (pair(ARRAY, NESTED), "has more than 8 arrays in each other"),
    "a truth of 2": (pair(BOOL, b"\2"), "a truth value that is neither 0 nor 1"),
    "an alignment of 0": (gguf_bytes([("general.alignment", UINT32, 0)], []), "general.alignment is '0'; it is a power of two"),
    "an alignment of 24": (gguf_bytes([("general.alignment", UINT32, 24)], []), "general.alignment is '24'"),
    "an alignment in words": (gguf_bytes([("general.alignment", STRING, "32")], []), "general.alignment is '32'"),
    "a tensor twice": (gguf_bytes([], [TENSORS[0], TENSORS[0]]), "there are two tensors 'token_embd.weight'"),
    "five dimensions": (one("x", 0, (1, 1, 1, 1, 1)), "'x' has 5 dimensions; ggml's have at most 4"),
    "endless dimensions": (
        gguf(tensors=text("x") + struct.pack("<I", 2**32 - 1) + bytes(20), count=(1, 0)),
        "has 4,294,967,295 dimensions",
    ),
    "too many elements": (one("x", 0, (2**40, 2**40)), "'x' has 2^63 elements or more"),
    "no elements of too many": (one("x", 0, (0, 2**63)), "'x' has 2^63 elements or more"),
    "an unknown tensor type": (one("x", 142, (1,)), "'x' is of the unknown ggml type 142; known are 0 F32, 1 F16"),
    "a removed tensor type": (one("x", 31, (1,)), "type 31 (Q4_0_4_4, which ggml has removed)"),
    "half a block": (one("x", TYPES["Q4_K"], (128, 2)), "'x' has rows of 128 elements, but Q4_K stores 256 at a time"),
    "an offset": (one("x", 0, (1,), 32), "'x' begins at byte 32 of the data, not at 0, where the data begin, aligned to 32"),
    "overlap": (gguf(tensors=info("x", 0, (8,), 0) + info("y", 0, (1,), 0), count=(2, 0)), "where 'y' ends, aligned to 32"),
    "cut weights": (gguf_header() + bytes(1000), "is truncated: its tensors end at byte"),
    "a cut header": (gguf_header()[:300], "ends at byte 300"),
}


@pytest.mark.parametrize("why", BAD_GGUF)
def test_broken_gguf_is_refused(why: str, tmp_path: Path) -> None:
    content, message = BAD_GGUF[why]
    refused(written(tmp_path / "model.gguf", content), message)


def part(folder: Path, number: int, count: int, tensors: int = 3, name: str = "m", no: int | None = None, own: str = "") -> Path:
    pairs: list[Pair] = LLAMA if number == 1 else []
    split: list[Pair] = [("split.no", UINT16, number - 1 if no is None else no), ("split.count", UINT16, count)]
    split += [("split.tensors.count", INT32, tensors)]
    path = folder / f"{name}-{number:05}-of-{count:05}.gguf"
    return written(path, gguf_bytes([*pairs, *split], [(f"{own or number}.weight", "F16", (64,))]))


def test_a_split_model_is_one_checkpoint(tmp_path: Path) -> None:
    paths = [part(tmp_path, number, 3) for number in (1, 2, 3)]
    found = read_checkpoint(paths[1])
    assert found.files == tuple(path.name for path in paths)
    assert [tensor.file for tensor in found.tensors] == list(found.files)
    assert (found.parameters, found.total_bytes, found.missing) == (192, 384, ())
    assert found.metadata["general.architecture"] == "llama"
    assert read_checkpoint(tmp_path).tensors == found.tensors


def test_a_split_model_of_which_parts_are_missing(tmp_path: Path) -> None:
    for number in (2, 4):
        part(tmp_path, number, 4)
    found = read_checkpoint(tmp_path)
    assert found.missing == ("m-00001-of-00004.gguf", "m-00003-of-00004.gguf")
    assert (found.parameters, found.total_bytes, found.bytes_by_dtype) == (None, None, None)
    assert architecture(found) is None


def split_as(**said: Any) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        part(folder, 1, 2, **said)
        return part(folder, 2, 2, **said)

    return build


def renamed(folder: Path) -> Path:
    return part(folder, 1, 2).rename(folder / "model.gguf")


def counted(kind: int, value: Any) -> Callable[[Path], Path]:
    return lambda folder: written(folder / "m-00001-of-00002.gguf", gguf_bytes([("split.count", kind, value)], []))


BAD_SPLITS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "renamed": (renamed, "is one of 2 parts; name the parts as gguf-split does, …-00001-of-00002.gguf"),
    "the same part twice": (split_as(no=0), "is by its name part 2 of 2, but split.no is 0"),
    "another count": (split_as(tensors=9), "has 2 tensors in its 2 parts, but split.tensors.count is 9"),
    "a tensor twice": (split_as(own="x"), "tensor 'x.weight' is both in m-00001-of-00002.gguf and in m-00002"),
    "a count in words": (counted(STRING, "two"), "split.count is 'two'"),
    "a count below zero": (counted(INT32, -1), "split.count is '-1'"),
    "a broken count": (counted(6, 2.0), "split.count is '2.0'"),
    "many counts": (counted(ARRAY, (UINT16, [2])), "split.count is '(2,)'"),
}


@pytest.mark.parametrize("why", BAD_SPLITS)
def test_parts_that_do_not_belong_together_are_refused(why: str, tmp_path: Path) -> None:
    build, message = BAD_SPLITS[why]
    refused(build(tmp_path), message)


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
