"""How fast headers of weight files are read, and with how much memory: run with --benchmark-enable, and -s for the memory."""

from __future__ import annotations

import math
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from estimator.weights.read import read_checkpoint
from tests.weight_files import ARRAY, FLOAT32, INT32, STRING, Info, Pair, gguf_header, safetensors_bytes, tensor_bytes, written

pytestmark = pytest.mark.slow

TOKENS, MERGES = 128_256, 280_147
"""Llama 3's."""
SQUARE, WIDE, KEYS = (4096, 4096), (4096, 14336), (4096, 1024)
SHAPES: list[tuple[int, ...]] = [SQUARE, KEYS, KEYS, SQUARE, WIDE, WIDE, WIDE[::-1], (4096,), (4096,)]
LLAMA_3: list[Info] = [(f"blk.{layer}.{i}.weight", "F16", shape) for layer in range(32) for i, shape in enumerate(SHAPES)]
LLAMA_3 += [("token_embd.weight", "F16", (4096, TOKENS)), ("output.weight", "F16", (4096, TOKENS)), ("norm", "F16", (4096,))]
VOCABULARY: list[Pair] = [
    ("tokenizer.ggml.tokens", ARRAY, (STRING, [f"token{i}" for i in range(TOKENS)])),
    ("tokenizer.ggml.scores", ARRAY, (FLOAT32, [0.0] * TOKENS)),
    ("tokenizer.ggml.token_type", ARRAY, (INT32, [1] * TOKENS)),
    ("tokenizer.ggml.merges", ARRAY, (STRING, [f"a{i} b{i}" for i in range(MERGES)])),
]
ONE: list[Info] = [("weight", "F16", (2**30, 5))]
MANY: list[Info] = [(f"model.layers.{i // 100}.experts.{i % 100}.gate_proj.weight", "F16", (7168, 2048)) for i in range(50_000)]


def gguf(path: Path, pairs: list[Pair], tensors: list[Info]) -> Path:
    """A GGUF file that is as long as it should be, but of which only the header takes room on disk."""
    header = gguf_header(pairs, tensors)
    written(path, header)
    os.truncate(path, len(header) + sum(-(-tensor_bytes(kind, shape) // 32) * 32 for _, kind, shape in tensors))
    return path


def safetensors(path: Path, tensors: list[Info]) -> Path:
    """The same for safetensors."""
    entries: dict[str, Any] = {}
    at = 0
    for name, kind, shape in tensors:
        end = at + 2 * math.prod(shape)
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    header = safetensors_bytes(entries, 0)
    written(path, header)
    os.truncate(path, len(header) + at)
    return path


FILES: dict[str, Callable[[Path], Path]] = {
    "safetensors, 10 GiB in one tensor": lambda folder: safetensors(folder / "one.safetensors", ONE),
    "gguf, 10 GiB in one tensor": lambda folder: gguf(folder / "one.gguf", [], ONE),
    "safetensors, 8B": lambda folder: safetensors(folder / "model.safetensors", LLAMA_3),
    "gguf, 8B with its vocabulary": lambda folder: gguf(folder / "model.gguf", VOCABULARY, LLAMA_3),
    "safetensors, 50,000 tensors": lambda folder: safetensors(folder / "many.safetensors", MANY),
}


@pytest.mark.parametrize("name", FILES)
def test_a_header(name: str, benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    path = FILES[name](tmp_path)
    tracemalloc.start()
    read_checkpoint(path)
    print(f"{name}: {tracemalloc.get_traced_memory()[1] / 1e6:.2f} MB at most")
    tracemalloc.stop()
    benchmark.pedantic(read_checkpoint, (path,), rounds=9, warmup_rounds=1)
