"""Checkpoints that were converted for MLX, beside the bytes of published ones."""

from __future__ import annotations

import pytest

from estimator import fit
from estimator.quantization.mlx import NEAREST, WORDS, mlx_bytes, mlx_cache_bytes
from estimator.specs.resolve import resolve

PUBLISHED = {
    "Llama-3.1-Nemotron-70B-Instruct-HF-4bit": 39_688_355_840,
    "Llama-3.1-Nemotron-70B-Instruct-HF-8bit": 74_964_549_632,
    "NVIDIA-Nemotron-Nano-9B-v2-6bit": 7_224_298_496,
    "NVIDIA-Nemotron-Nano-9B-v2-4bits": 5_002_791_936,
    "NVIDIA-Nemotron-3-Nano-30B-A3B-MLX-MXFP4": 16_788_808_704,
    "MiniMax-M2.5-6bit": 185_826_705_408,
    "GLM-4.7-4bit": 198_556_925_568,
    "Qwen3.5-9B-4bit": 5_950_062_560,
    "Qwen3.5-27B-8bit": 29_500_943_328,
    "Qwen3.6-35B-A3B-4bit": 20_401_929_952,
    "gemma-4-31b-it-4bit": 18_411_755_224,
}
"""Bytes of mlx-community's repositories, from exo-explore/exo, resources/inference_model_cards (`storage_size`), of 2026-06-22;
those are left out that it rounds to MiB."""


@pytest.mark.parametrize(("name", "nbytes"), PUBLISHED.items())
def test_a_repository_is_as_large_as_the_published_one(name: str, nbytes: int) -> None:
    """To a twentieth of a percent: what corrects experts' scores is in float32 there, as some numbers of states are, and what
    joins Gemma's tower to its decoder is in few bits."""
    found = resolve(f"mlx-community/{name}", allow_files=False)
    assert mlx_bytes(found.spec, found.mlx) == pytest.approx(nbytes, rel=5e-4)


def test_a_dense_model_is_so_to_the_byte() -> None:
    for name in ("Llama-3.1-Nemotron-70B-Instruct-HF-4bit", "NVIDIA-Nemotron-Nano-9B-v2-6bit"):
        found = resolve(f"mlx-community/{name}", allow_files=False)
        assert mlx_bytes(found.spec, found.mlx) == PUBLISHED[name]


def test_what_does_not_read_it_is_said_with_what_to_use_instead() -> None:
    for kind in NEAREST:
        assert kind in WORDS
    said = "; ".join(resolve("mlx-community/Qwen3-8B-6bit", allow_files=False).assumptions)
    assert "vLLM, SGLang and llama.cpp do not read it" in said
    assert "qwen3-8b-FP8 for vLLM and SGLang, qwen3-8b-GGUF:Q6_K for llama.cpp" in said


def test_a_row_of_apples_chips_counts_its_weights() -> None:
    row = fit("mlx-community/Llama-3.2-1B-Instruct-8bit", "m3-16gb", task="serve").rows[0]
    assert row.way == "serve 8bit, MLX"
    assert (row.fits, row.verdict, row.total_bytes) == (None, "unknown", None)
    assert "its weights are 1.2 GiB" in row.problem
    assert "a cache of 4096 tokens 0.1 GiB in 16 bits" in row.problem
    row = fit("mlx-community/Qwen3-32B-4bit", "m3-max-48gb", task="serve", context=32768, concurrency=3).rows[0]
    assert row.fits is False
    assert "a cache of 98304 tokens 24.0 GiB in 16 bits: together more than there is" in row.problem
    row = fit("mlx-community/Llama-3.3-70B-Instruct-4bit", "m3-16gb", task="serve").rows[0]
    assert row.fits is False
    assert "its weights alone are 37.0 GiB" in row.problem


@pytest.mark.parametrize(
    ("model", "context", "tokens"),
    [("llama-3.2-1b", 4096, 4096), ("llama-3.2-1b", 4097, 4352), ("mistral-7b-v0.1", 300, 512), ("mistral-7b-v0.1", 9000, 4096)],
)
def test_a_cache_grows_in_steps_and_a_windows_no_further(model: str, context: int, tokens: int) -> None:
    spec = resolve(model).spec
    layer, *others = spec.cache_layers
    assert all(each == layer for each in others)
    each = layer.heads * (layer.key_size + layer.value_size) * 2
    assert mlx_cache_bytes(spec, context) == len(spec.cache_layers) * each * tokens


def test_what_is_no_key_and_no_value_is_not_counted() -> None:
    assert mlx_cache_bytes(resolve("deepseek-v2-lite").spec, 4096) is None
    assert mlx_cache_bytes(resolve("bert-base-uncased").spec, 128) is None
