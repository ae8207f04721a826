"""vLLM over a pipeline's stages, and experts over data-parallel ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimator import InvalidJob, NotModelled, estimate, read_file
from estimator.contract.answer import EngineMemory
from estimator.serving.tensors import held, stage_layers
from estimator.serving.vllm.cache_groups import grouped, kept
from estimator.specs.resolve import resolve

GIB = 2**30


def engine(model: str, gpus: int, parallel: dict[str, int], gpu: str = "h100", **serving: Any) -> EngineMemory:
    hardware = {"gpu": gpu, "gpus": gpus}
    job = {
        "model": model,
        "task": "serve",
        "hardware": hardware,
        "parallelism": parallel,
        "serving": {"engine": "vllm", **serving},
    }
    found = estimate(job).memory.engine
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("depth", "ranks", "sizes"),
    [
        (32, 2, [16, 16]),
        (32, 1, [32]),
        (10, 4, [2, 3, 3, 2]),
        (11, 4, [3, 3, 3, 2]),
        (5, 2, [3, 2]),
        (61, 8, [7, 7, 8, 8, 8, 8, 8, 7]),
    ],
)
def test_layers_of_the_stages(depth: int, ranks: int, sizes: list[int]) -> None:
    found = [stage_layers(depth, (rank, ranks)) for rank in range(ranks)]
    assert sum(map(len, found)) == depth
    assert [layer for each in found for layer in each] == list(range(depth))
    assert list(map(len, found)) == sizes


@pytest.mark.parametrize(("stages", "logged"), [(1, 14.99), (2, 7.51), (4, 4.26)])
def test_weights_of_a_stage_are_what_was_logged(stages: int, logged: float) -> None:
    """Llama-3.1-8B on H100, 0.19 (llm-d-planner @875a4fd609ee, accuracy_report.md)."""
    found = engine("llama-3.1-8b", stages, {"pipeline": stages}, engine_version="0.19", context=8192)
    assert found.weights_bytes / GIB == pytest.approx(logged, abs=0.005)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b", "qwen3-30b-a3b", "qwen2.5-1.5b", "deepseek-v2-lite"])
def test_stages_hold_every_tensor_once(model: str) -> None:
    """But for an embedding that is the output layer too, and what reads images."""
    spec = resolve(model).spec
    whole = sum(each.numel * each.times for each in held(spec))
    parts = [each for rank in range(3) for each in held(spec, stage=(rank, 3))]
    again = [each for each in held(spec) if each.seen or each.kind == "embedding"]
    tied = not any(each.name.startswith("lm_head") for each in again)
    twice = sum(each.numel * each.times * (2 if each.seen else tied) for each in again)
    assert sum(each.numel * each.times for each in parts) == whole + twice


def test_stages_have_room_for_more_tokens_than_one_gpu() -> None:
    tokens = [engine("qwen3-32b", n, {"pipeline": n}).cache_tokens or 0 for n in (1, 2, 4)]
    assert tokens[1] > 4 * tokens[0]
    assert tokens[2] > 2 * tokens[1]


def test_a_stage_has_a_part_of_every_group() -> None:
    """Gemma 3 27B: groups of 10 layers, of which each of two stages has half."""
    layers = kept(resolve("gemma-3-27b").spec.cache_layers, 1, 2, 2)
    assert grouped(layers).size == 10
    assert grouped(layers, frozenset(range(31))).size in (5, 6)


def test_experts_over_data_parallel_ranks() -> None:
    """All of them hold attention's layers whole, and an eighth of the experts."""
    apart, together = (
        engine("deepseek-v3", 8, {"data": data, "tensor": 8 // data}, "b200", enable_expert_parallel=True) for data in (1, 8)
    )
    spec = resolve("deepseek-v3").spec
    experts = sum(each.numel * each.times for each in held(spec, expert_ranks=8) if each.kind == "experts")
    assert apart.weights_bytes > experts / 2
    assert together.weights_bytes > apart.weights_bytes
    assert engine("deepseek-v3", 8, {"tensor": 8}, "b200").weights_bytes == pytest.approx(apart.weights_bytes, rel=0.001)


@pytest.mark.parametrize(
    ("model", "stages", "serving", "error", "says"),
    [
        ("whisper-large-v3", 2, {}, InvalidJob, "in no pipeline"),
        ("qwen3-embedding-8b", 2, {}, NotModelled, "pooling runner over a pipeline"),
        ("qwen3-8b", 2, {"engine": "transformers"}, NotModelled, "over a pipeline"),
        ("llama-68m", 8, {}, InvalidJob, "more than the model's 2 layers"),
    ],
)
def test_what_is_refused(model: str, stages: int, serving: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        engine(model, stages, {"pipeline": stages}, **serving)


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ("-tp 2 -pp 2", {"tensor": 2, "pipeline": 2}),
        ("-dp 8 --enable-expert-parallel", {"data": 8}),
        ("--enable-lora --max-loras 4 --max-lora-rank 64", {"enable_lora": True, "max_loras": 4, "max_lora_rank": 64}),
        ('--limit-mm-per-prompt \'{"image": 0, "video": 0}\'', {"language_model_only": True}),
        ("--limit-mm-per-prompt image=2", {"language_model_only": None}),
        ("--limit-mm-per-prompt.image 0 --limit-mm-per-prompt.video 0", {"language_model_only": True}),
        ("-tp 8 -dcp 2 -ep", {"tensor": 8, "decode_context_parallel_size": 2, "enable_expert_parallel": True}),
        ("--cpu-offload-gb 2.5 -O0", {"cpu_offload_gb": 2.5, "enforce_eager": True}),
        ("--dtype half", {"weights": "fp16"}),
        ("--task embed", {"runner": "pooling"}),
        ("--runner pooling", {"runner": "pooling"}),
    ],
)
def test_a_command_is_read(flags: str, fields: dict[str, Any], tmp_path: Path) -> None:
    command = tmp_path / "serve.sh"
    command.write_text(f"vllm serve Qwen/Qwen3-30B-A3B {flags}\n", encoding="utf-8")
    job = read_file(command).job
    parts = {**job["serving"], **job.get("parallelism", {})}
    assert {name: parts.get(name) for name in fields} == fields


def test_what_is_quantized_stays_so_whatever_the_rest_is_in(tmp_path: Path) -> None:
    command = tmp_path / "serve.sh"
    command.write_text("vllm serve Qwen/Qwen2.5-7B-Instruct-AWQ --dtype half --max-model-len 4096\n", encoding="utf-8")
    job = read_file(command).job
    assert "weights" not in job["serving"]
    assert estimate(job).job["serving"]["weights"] == "awq-int4"


def test_options_say_parts_of_a_mapping_and_a_transcriber_has_its_own_length(tmp_path: Path) -> None:
    command = tmp_path / "serve.sh"
    guessing = "--speculative-config.method mtp --speculative-config.num_speculative_tokens 1"
    command.write_text(f"vllm serve zai-org/GLM-4.5-Air -tp 8 --max-model-len 8192 {guessing}\n", encoding="utf-8")
    assert read_file(command).job["serving"]["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 1}
    command.write_text("vllm serve openai/whisper-large-v3\n", encoding="utf-8")
    assert read_file(command).job["serving"]["context"] == 448


def test_weights_in_the_hosts_memory() -> None:
    """OLMo 2 7B, 13.5958 GiB, with cpu_offload_gb 8 had 5.6 GB of them on the GPU (zisaacson/BatchLocaLLM,
    CPU_OFFLOAD_DEEP_DIVE.md). What reaches the limit goes whole, so that up to a parameter more goes."""
    whole, left = (engine("olmo-2-7b", 1, {}, cpu_offload_gb=size, context=4096) for size in (0, 8))
    largest = 22016 * 4096 * 2
    assert whole.weights_bytes / GIB == pytest.approx(13.596, abs=0.02)
    assert left.weights_bytes / GIB == pytest.approx(5.6, abs=0.1)
    assert 0 <= whole.weights_bytes - left.weights_bytes - 8 * GIB < largest
    all_of_it = engine("olmo-2-7b", 1, {}, cpu_offload_gb=100, context=4096)
    assert all_of_it.weights_bytes == pytest.approx(2 * 100352 * 4096 * 2, rel=0.02)  # the embedding and the output layer stay


def test_a_cache_over_several_ranks() -> None:
    alone, over = (engine("deepseek-v3", 8, {"tensor": 8}, "h200", context=65536, **asked) for asked in ({}, DIVIDED))
    assert alone.cache_blocks == over.cache_blocks
    assert over.concurrency == pytest.approx(8 * (alone.concurrency or 0))
    assert over.cache_tokens == pytest.approx(8 * (alone.cache_tokens or 0), rel=1e-3)
    with pytest.raises(InvalidJob, match="do not divide the 8"):
        engine("deepseek-v3", 8, {"tensor": 8}, decode_context_parallel_size=3)
    with pytest.raises(InvalidJob, match="no more ranks can share a cache"):
        engine("llama-3.3-70b", 8, {"tensor": 8}, decode_context_parallel_size=2)
    with pytest.raises(NotModelled, match="gemma3 models"):
        engine("gemma-3-27b", 8, {"tensor": 8}, decode_context_parallel_size=2)


DIVIDED = {"decode_context_parallel_size": 8}
