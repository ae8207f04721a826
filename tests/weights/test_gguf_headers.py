"""Headers of GGUF files: against the library that writes them, and broken in every way that came to mind."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from estimator.contract.reading import load_yaml
from estimator.specs.architecture import architecture
from estimator.weights.cursor import MOST_VALUES
from estimator.weights.dtypes import FILE, ggml_removed, ggml_types
from estimator.weights.read import read_checkpoint
from tests.weight_files import (
    ARRAY,
    BOOL,
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
    text,
    written,
)
from tests.weights.made import gguf, one, pair, part, refused


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
