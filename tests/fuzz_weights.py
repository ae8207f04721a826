"""Mutates headers of weight files for as long as one likes: `python -m tests.fuzz_weights --seconds 600`.

Every mutant is read; an `InvalidJob` or a checkpoint may come out, nothing else, and not slowly. What the safetensors library
reads of a mutant must be read here, and the same, except for what the format's description refuses and the library does not
(`_stricter`); what it refuses must be refused. A seed makes the same mutant again.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from estimator.contract.errors import InvalidJob
from estimator.specs.architecture import architecture
from estimator.weights.read import read_checkpoint
from tests.weight_files import (
    ARRAY,
    BOOL,
    ENTRIES,
    LLAMA,
    STRING,
    TENSORS,
    UINT16,
    UINT32,
    gguf_bytes,
    safetensors_bytes,
    written,
)

SLOW_SECONDS = 5.0
INDEX = json.dumps(
    {"metadata": {"total_size": 40}, "weight_map": {"a": "mutant.safetensors", "b": "absent.safetensors"}}
).encode()
MODEL = gguf_bytes(
    [
        *LLAMA,
        ("llama.embedding_length", UINT32, 256),
        ("llama.context_length", UINT32, 64),
        ("llama.feed_forward_length", UINT32, 512),
        ("llama.attention.head_count", UINT32, 4),
        ("llama.attention.head_count_kv", ARRAY, (UINT32, [2, 2])),
        ("llama.expert_count", UINT32, 0),
        ("split.count", UINT16, 1),
        ("flags", ARRAY, (BOOL, [True] * 5)),
        ("deep", ARRAY, (ARRAY, [(ARRAY, [(STRING, ["a"])])])),
    ],
    [*TENSORS, ("output.weight", "Q6_K", (256, 3)), ("blk.0.attn_q.weight", "MXFP4", (256, 2, 2))],
)
BASES = [
    ("safetensors", safetensors_bytes()),
    ("safetensors", safetensors_bytes({f"model.layers.{i}.w": ENTRIES["a"] for i in range(1)} | {"__metadata__": {}}, 24)),
    ("gguf", gguf_bytes()),
    ("gguf", gguf_bytes(version=2, alignment=64)),
    ("gguf", MODEL),
    ("safetensors.index.json", INDEX),
]
EDGES = [
    0,
    1,
    2,
    7,
    8,
    31,
    32,
    127,
    128,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
WORDS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"null",
    b"true",
    b"-1",
    b"1e9",
    b"NaN",
    b'"F4"',
    b'"BF16"',
    b"\\ud800",
    b" ",
    b"0",
]
WORDS += [b"__metadata__", b"data_offsets", b"9" * 25, b"\xff", b"\0", b"\xed\xa0\x80", b"GGUF", b"[" * 3000, b'{"a":' * 1500]


def flip(content: bytearray, chance: random.Random) -> None:
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def number(content: bytearray, chance: random.Random) -> None:
    """Overwrites one, two, four or eight bytes with a number at the edge of something."""
    size = chance.choice([1, 2, 4, 8])
    at = chance.randrange(len(content))
    content[at : at + size] = struct.pack("<Q", chance.choice(EDGES))[:size]


def cut(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(len(content)) :]


def drop(content: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(content))
    del content[at : at + chance.randrange(1, 16)]


def insert(content: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(content))
    content[at:at] = chance.choice([*WORDS, chance.randbytes(chance.randrange(1, 12))])


def repeat(content: bytearray, chance: random.Random) -> None:
    at, size = chance.randrange(len(content)), chance.randrange(1, 64)
    content[at:at] = content[at : at + size]


def swap(content: bytearray, chance: random.Random) -> None:
    one, other, size = chance.randrange(len(content)), chance.randrange(len(content)), chance.randrange(1, 9)
    content[one : one + size], content[other : other + size] = content[other : other + size], content[one : one + size]


def digit(content: bytearray, chance: random.Random) -> None:
    """Changes one digit of a text: sizes and offsets of JSON."""
    places = [at for at, letter in enumerate(content) if 48 <= letter <= 57]
    if places:
        content[chance.choice(places)] = chance.randrange(48, 58)


CHANGES: list[Callable[[bytearray, random.Random], None]] = [flip, number, cut, drop, insert, repeat, swap, digit]


def mutant(seed: int) -> tuple[str, bytes]:
    """A suffix and a file's content: one of the bases with a few changes, most of them in its header."""
    chance = random.Random(seed)
    suffix, base = chance.choice(BASES)
    content = bytearray(base)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        if content:
            chance.choice(CHANGES)(content, chance)
    if suffix == "safetensors" and len(content) > 8 and chance.random() < 0.7:
        _fitting(content)
    return suffix, bytes(content)


def _fitting(content: bytearray) -> None:
    """Gives a changed JSON header its length, so that what is behind it is reached."""
    end = content.rfind(b"}") + 1
    if end > 8:
        content[:8] = struct.pack("<Q", end - 8)


def judged(path: Path) -> str:
    """How a file was taken: "read" or "refused"; raises what should not come out."""
    begin = time.perf_counter()
    try:
        found = read_checkpoint(path)
        architecture(found)
    except InvalidJob as error:
        str(error).encode()
        found = None
    seconds = time.perf_counter() - begin
    assert seconds < SLOW_SECONDS, f"{seconds:.1f} seconds"
    if path.suffix == ".safetensors" and not path.read_bytes().startswith(b"GGUF"):
        _compared(path, found)
    return "refused" if found is None else "read"


def by_the_library(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of every tensor as the safetensors library reads them."""
    with safe_open(path, "pt") as opened:
        slices = {name: opened.get_slice(name) for name in list(opened.keys())}
        return {name: (tensor.get_dtype(), tuple(tensor.get_shape())) for name, tensor in slices.items()}


def _compared(path: Path, found: Any) -> None:
    """The library's view of the same file."""
    try:
        theirs = by_the_library(path)
    except (SafetensorError, OSError):
        assert found is None, "the library refuses this"
        return
    if found is None:
        assert _stricter(path.read_bytes()), "the library reads this"
        return
    assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in found.tensors} == theirs


def _stricter(content: bytes) -> bool:
    """Whether a file has what only this reader refuses: names that come twice, a header that does not begin with a brace, and
    tensors that are described by a list."""
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    twice: list[bool] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice.append(len(dict(pairs)) < len(pairs))
        return dict(pairs)

    entries = json.loads(header, object_pairs_hook=unique)
    listed = any(isinstance(entry, list) for entry in entries.values()) if isinstance(entries, dict) else True
    return any(twice) or listed or not header.startswith(b"{")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; each mutant has the next one")
    given = parser.parse_args()
    taken: Counter[str] = Counter()
    end, seed, findings = time.monotonic() + given.seconds, given.seed, 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            suffix, content = mutant(seed)
            try:
                taken[f"{suffix} {judged(written(Path(folder) / f'mutant.{suffix}', content))}"] += 1
            except Exception:
                findings += 1
                print(f"seed {seed}:\n{traceback.format_exc()}", flush=True)
            seed += 1
    print(f"{seed - given.seed:,} mutants, seeds {given.seed} to {seed - 1}: {findings} findings")
    for kind, count in sorted(taken.items()):
        print(f"  {count:10,} {kind}")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
