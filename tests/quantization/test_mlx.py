"""Checkpoints that were converted for MLX, beside the bytes of published ones."""

from __future__ import annotations

import pytest

from estimator import fit
from estimator.quantization.mlx import NEAREST, WORDS, mlx_bytes
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
    row = fit("mlx-community/Llama-3.3-70B-Instruct-4bit", "m3-16gb", task="serve").rows[0]
    assert row.fits is False
    assert "its weights alone are 37.0 GiB" in row.problem
