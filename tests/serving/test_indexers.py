"""DeepSeek-V3.2 and GLM-5: caches of latents and of their indexers' keys, as vLLM and SGLang keep them."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.serving.tensors import held
from estimator.serving.vllm.cache_groups import grouped, kept
from estimator.specs.resolve import resolve
from tests.serving.questions import asked, logged

GIB = 2**30
LATENT, KEY = 2 * 576, 132


@pytest.mark.parametrize(
    ("model", "layers", "indexers"), [("deepseek-v3.2", 61, 61), ("glm-5", 78, 78), ("glm-5.2", 78, 21), ("hy4-preview", 78, 21)]
)
@pytest.mark.parametrize("tensor", [1, 8])
def test_vllm_keeps_both_in_one_group_on_every_rank(model: str, layers: int, indexers: int, tensor: int) -> None:
    cache = resolve(model).spec.cache_layers
    found = grouped(kept(cache, tensor, 2, 2))
    assert [sum(layer.kind == kind for layer in cache) for kind in ("latent", "indexer")] == [layers, indexers]
    assert found.block_bytes == 64 * (layers * LATENT + indexers * KEY)
    assert found.request_blocks(4096, 8192) == 64


@pytest.mark.parametrize(("scaled", "latent"), [(True, 656), (False, 576)])
def test_latents_in_fp8_have_scales_but_on_blackwell_and_keys_are_as_they_were(scaled: bool, latent: int) -> None:
    found = grouped(kept(resolve("deepseek-v3.2").spec.cache_layers, 8, 1, 2, scaled=scaled))
    assert found.block_bytes == 64 * 61 * (latent + KEY)
    whole = grouped(kept(resolve("deepseek-v3").spec.cache_layers, 8, 1, 2, scaled=scaled))
    assert whole.block_bytes == 64 * 61 * 576


@pytest.mark.parametrize(
    ("model", "gpu", "given", "token"),
    [
        ("deepseek-v3.2", "h200", {}, 61 * (LATENT + KEY)),
        ("deepseek-v3.2", "h200", {"kv_cache": "fp8"}, 61 * (656 + KEY)),
        ("deepseek-v3.2", "b200", {}, 61 * (576 + KEY)),  # in fp8 unasked, without scales
        ("glm-5.2", "h200", {}, 78 * LATENT + 21 * KEY),
        ("glm-5.2", "h200", {"speculative_algorithm": "NEXTN"}, 79 * LATENT + 22 * KEY),
    ],
)
def test_sglang_keeps_a_cell_for_both(model: str, gpu: str, given: dict[str, Any], token: int) -> None:
    found = asked("sglang", model, 16, gpu, weights="fp8-block", **given)
    assert found.memory.kv_cache is not None
    assert found.memory.kv_cache.bytes_per_token == token
    assert found.job["serving"]["page_size"] == 64


@pytest.mark.parametrize(
    ("model", "tokens", "gib"),
    [
        ("glm-5", 314304, 29.32),  # on RTX PRO 6000 (voipmonitor/rtx6kpro @29f3863)
        ("deepseek-v3.2", 256000, 18.68),  # kvcache-ai/ktransformers issue 1969
    ],
)
def test_logged_pools_hold_the_logged_tokens(model: str, tokens: int, gib: float) -> None:
    """A page more than its tokens, in two decimals."""
    found = asked("sglang", model, 16, "h200", weights="fp8-block", kv_cache="bf16").memory.kv_cache
    assert found is not None
    assert found.bytes_per_token * (tokens + 64) / GIB == pytest.approx(gib, abs=0.0051)


def test_an_indexer_is_on_every_rank() -> None:
    spec = resolve("deepseek-v3.2").spec
    for ranks in (1, 8):
        shapes = {each.end: each.shape for each in held(spec, ranks)}
        assert [shapes[end] for end in ("wq_b", "wk", "weights_proj")] == [(64 * 128, 1536), (128, 7168), (64, 7168)]


def test_what_is_chosen_and_its_workspaces_are_counted() -> None:
    """Beside DeepSeek-V3 of the same weights: indexers, places of 2048 tokens for each of a pass, and tables to turn by."""
    one, other = (logged(asked("vllm", model, 16, "h200", weights="fp8-block")) for model in ("deepseek-v3", "deepseek-v3.2"))
    indexers = 61 * (8192 * 1536 + 2 * (128 + 64) * 7168)
    places, tables = 8192 * 2048 * 4, 163840 * 64 * 2
    assert other.weights_bytes - one.weights_bytes == pytest.approx(indexers + places + tables, rel=0.01)
    long = logged(asked("vllm", "deepseek-v3.2", 16, "h200", weights="fp8-block", context=163840))
    assert (long.activation_bytes or 0) - (other.activation_bytes or 0) == 0  # the experts' workspace is larger than 825 MiB
    small = {"max_num_batched_tokens": 1024, "weights": "fp8-block"}
    low, high = (logged(asked("vllm", "deepseek-v3.2", 16, "h200", context=c, **small)).activation_bytes for c in (4096, 163840))
    assert (high or 0) > (low or 0) + 500 * 2**20


def test_a_layer_that_ships_has_an_indexer_whatever_the_last_one_has() -> None:
    alone, guessed = (
        logged(asked("vllm", "glm-5.2", 16, "h200", weights="fp8-block", **given))
        for given in ({}, {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}})
    )
    per_block = [(each.cache_bytes or 0) // (each.cache_blocks or 1) for each in (alone, guessed)]
    assert per_block[1] - per_block[0] == pytest.approx(64 * (LATENT + KEY), rel=0.02)
    assert guessed.draft_bytes


def test_attention_looks_at_what_was_chosen() -> None:
    """At 100,000 tokens a step of V3.2 reads 2048 latents and all keys, one of V3 all latents."""
    times = [
        asked("vllm", model, 16, "h200", weights="fp8-block", context=131072, concurrency=64).serving
        for model in ("deepseek-v3", "deepseek-v3.2")
    ]
    assert times[0] is not None
    assert times[1] is not None
    assert times[1].decode.step_seconds < times[0].decode.step_seconds


@pytest.mark.parametrize(
    ("of", "gpu", "given", "token"),
    [
        ("vllm", "h200", {}, 60 * 256 * 2 + 57 * 256),
        ("vllm", "h200", {"kv_cache": "fp8"}, 60 * 256 + 57 * 256),
        ("sglang", "h200", {}, 60 * 256 * 2 + 57 * 256),
        ("sglang", "h200", {"kv_cache": "fp8"}, 60 * 256 + 57 * 128),
    ],
)
def test_indexers_that_pick_blocks_have_keys_without_scales(of: str, gpu: str, given: dict[str, Any], token: int) -> None:
    """MiniMax-M3 over eight GPUs, with one key head on each: three layers look at everything, 57 have an indexer."""
    found = asked(of, "minimax-m3-text", 8, gpu, context=65536, **given)
    assert found.memory.kv_cache is not None
    assert found.memory.kv_cache.bytes_per_token == token
    parts = {each.name: each.shape[0] for each in held(resolve("minimax-m3-text").spec, 8) if ".indexer." in each.name}
    assert parts["self_attn.indexer.q_proj"] == parts["self_attn.indexer.k_proj"] == 128


@pytest.mark.parametrize(("gpu", "gpus", "measured"), [("h200", 8, 0.662), ("b200", 8, 0.334), ("gb300", 4, 0.393)])
def test_a_prompt_is_read_in_about_the_time_in_which_its_first_token_came(gpu: str, gpus: int, measured: float) -> None:
    """8192 tokens, one request at a time (sgl-project/sglang docs_new/src/snippets/configs/zai-org/glm-5.2-benchmarks.jsx
    @00081a0). On Hopper 8 heads of a rank take as long as 64."""
    found = asked("sglang", "zai-org/GLM-5.2-FP8", gpus, gpu, prompt_length=8192, output_length=1024).serving
    assert found is not None
    assert 0.75 < found.time_to_first_token_seconds / measured < 1.1
    parts = {part.name: part.seconds for part in found.prefill.parts}
    assert (parts["attention"] > 0.3 * found.prefill.step_seconds) is (gpu == "h200")
