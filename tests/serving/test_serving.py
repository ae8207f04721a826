"""Serving: torch as judge of transformers' generation; vLLM's cache by arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import InvalidJob, Job, NotModelled, estimate
from estimator.families.spec import DecoderSpec
from estimator.specs.resolve import resolve
from tests.judge.serving import fake_serving

GIB = 2**30
NEOX = {"model_type": "gpt_neox", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
BIGCODE = {"model_type": "gpt_bigcode", "hidden_size": 2048, "num_attention_heads": 16, "max_position_embeddings": 2048}
OPT = {"model_type": "opt", "hidden_size": 1024, "num_attention_heads": 16, "word_embed_proj_dim": 512}
WIDTHS = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 4, "num_attention_heads": 32, "vocab_size": 51200}
CASES: list[tuple[str | dict[str, Any], int, int]] = [
    ("llama-2-7b", 1, 512),
    ("llama-3-8b", 4, 1024),
    ("qwen3-8b", 2, 2048),
    ("qwen2.5-1.5b", 2, 333),
    ("gpt2", 3, 512),
    ({**NEOX, "num_hidden_layers": 24, "vocab_size": 50304}, 3, 333),
    ({**BIGCODE, "num_hidden_layers": 24, "vocab_size": 49280}, 2, 1024),
    ({**OPT, "num_hidden_layers": 24, "vocab_size": 50272, "do_layer_norm_before": False}, 1, 512),
    ("mistral-7b-v0.1", 1, 5000),
    ({"model_type": "phi", **WIDTHS, "partial_rotary_factor": 0.4}, 2, 333),
    ({"model_type": "phi3", **WIDTHS, "num_key_value_heads": 8, "sliding_window": 700}, 2, 1024),
    ({"model_type": "stablelm", **WIDTHS, "num_key_value_heads": 8, "qk_layernorm": True, "use_parallel_residual": True}, 1, 512),
    ({"model_type": "starcoder2", **WIDTHS, "num_key_value_heads": 2, "sliding_window": 4096}, 2, 512),
    ({"model_type": "nemotron", **WIDTHS, "num_key_value_heads": 8}, 2, 1024),
    ({"model_type": "smollm3", **WIDTHS, "num_hidden_layers": 5, "num_key_value_heads": 4}, 2, 600),
    ({"model_type": "glm4", **WIDTHS, "num_key_value_heads": 2}, 2, 700),
]


@pytest.mark.share(4)
@pytest.mark.parametrize(("model", "sequences", "context"), CASES)
def test_generation_allocates_what_torch_allocates(model: str | dict[str, Any], sequences: int, context: int) -> None:
    """Equal for the prompt and for the next token."""
    spec = resolve(model).spec.model_copy(update={"num_hidden_layers": 4})
    assert isinstance(spec, DecoderSpec)
    serving = {"engine": "transformers", "context": context, "concurrency": sequences}
    answer = estimate({"model": spec.model_dump(), "task": "serve", "serving": serving})
    memory = answer.memory
    counted = fake_serving(Job.model_validate(answer.job), spec)
    assert memory.resident_bytes == counted["resident"]
    assert memory.phases["prefill"] == counted["prefill"]
    assert memory.phases["decode"] == counted["decode"]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"task": "train"}, "task"),
        ({"serving": {"engine": "vllm"}}, "serving.engine"),
        ({"serving": {"engine": "llama.cpp"}}, "serving.engine"),
        ({"serving": {"engine": "transformers", "weights": "int8"}}, "serving.weights"),
        ({"serving": {"engine": "transformers", "kv_cache": "fp8"}}, "serving.kv_cache"),
        ({"serving": {"engine": "transformers", "values_cache": "fp16"}}, "serving.values_cache"),
        ({"serving": {"engine": "transformers", "ubatch": 64}}, "serving.ubatch"),
        ({"model": "llama-3.2-1b", "hardware": {"gpus": 2}, "parallelism": {"tensor": 2}}, "parallelism"),
    ],
)
def test_the_judge_refuses_what_it_would_play_as_another_job(change: dict[str, Any], where: str) -> None:
    job = Job.model_validate({"model": "gpt2", "task": "serve", "serving": {"engine": "transformers"}} | change)
    spec = resolve(job.model).spec
    assert isinstance(spec, DecoderSpec)
    with pytest.raises(NotModelled, match="cannot play") as refused:
        fake_serving(job, spec)
    assert refused.value.where == where


@pytest.mark.parametrize(("model", "tensor", "kib"), [("llama-2-7b", 1, 512), ("llama-3-8b", 1, 128), ("llama-3-8b", 8, 16)])
def test_a_token_of_cache(model: str, tensor: int, kib: int) -> None:
    """Keys and values: 2 x layers x key heads x head size x 2 bytes, over the tensor-parallel ranks."""
    job = {"model": model, "task": "serve", "hardware": {"gpu": "h100", "gpus": tensor}, "parallelism": {"tensor": tensor}}
    cache = estimate(job).memory.kv_cache
    assert cache is not None
    assert cache.bytes_per_token == kib * 1024
    assert cache.needed_bytes == 4096 * kib * 1024
    assert cache.available_bytes is not None
    assert cache.available_tokens == cache.available_bytes // (16 * cache.bytes_per_token) * 16  # in whole blocks


def test_key_heads_are_copied_where_ranks_outnumber_them() -> None:
    def per_token(tensor: int) -> int:
        hardware = {"gpu": "h100", "gpus": tensor}
        job = {"model": "qwen2.5-7b", "task": "serve", "hardware": hardware, "parallelism": {"tensor": tensor}}
        cache = estimate(job).memory.kv_cache
        assert cache is not None
        return cache.bytes_per_token

    assert per_token(4) == per_token(1) // 4
    assert estimate({"model": "llama-3-8b", "task": "serve", "hardware": {"gpus": 16}, "parallelism": {"tensor": 16}})


def test_the_engine_takes_its_share_of_the_card() -> None:
    """The cache that vLLM would make and everything beside it are together what it was told to take."""
    for share in (0.5, 0.9):
        job = {"model": "llama-3-8b", "task": "serve", "hardware": {"gpu": "h100"}, "serving": {"gpu_memory_utilization": share}}
        memory = estimate(job).memory
        cache = memory.kv_cache
        assert cache is not None
        assert cache.available_bytes is not None
        assert memory.capacity_bytes is not None
        beside = memory.total_bytes - memory.at_peak["kv_cache"]
        assert cache.available_bytes + beside == pytest.approx(share * memory.capacity_bytes, abs=1)


def test_more_context_takes_more() -> None:
    totals = []
    for context in (1024, 8192, 65536):
        totals.append(estimate({"model": "llama-3.1-8b", "task": "serve", "serving": {"context": context}}).memory.total_bytes)
    assert totals == sorted(totals)
    assert totals[2] - totals[1] == 57344 * 128 * 1024


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "transformers", "llama.cpp"])
def test_the_share_that_vllm_takes_is_no_setting_of_others(engine: str) -> None:
    serving = {"engine": engine, "weights": "fp16", "kv_cache": "fp16"}
    job: dict[str, Any] = {"model": "qwen3-8b", "task": "serve", "hardware": {"gpu": "h100"}, "serving": serving}
    assert "gpu_memory_utilization" not in str(estimate(job).assumptions)
    with pytest.raises(InvalidJob, match="it is vLLM's: "):
        estimate(job | {"serving": serving | {"gpu_memory_utilization": 0.5}})
