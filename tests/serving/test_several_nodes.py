"""Models over the GPUs of two nodes, as vLLM and SGLang share them out: what each rank holds, and what is said of the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimator import Answer, InvalidJob, NotModelled, estimate, read_file
from estimator.contract.answer import EngineMemory
from estimator.contract.job import Serving
from estimator.serving.sglang.backend import held_by_sglang
from estimator.serving.sglang.pools import cells
from estimator.serving.sglang.ranks import Ranks, stage_layers
from estimator.serving.tensors import held
from estimator.specs.resolve import resolve

GIB = 2**30


def asked(engine: str, model: str, parallel: dict[str, int], gpu: str = "h100", **serving: Any) -> Answer:
    return estimate(
        {
            "model": model,
            "task": "serve",
            "hardware": {"gpu": gpu, "gpus": 8, "nodes": 2},
            "parallelism": parallel,
            "serving": {"engine": engine, "weights": "fp8" if "deepseek" in model else "bf16", "context": 8192, **serving},
        }
    )


def logged(*question: Any, **serving: Any) -> EngineMemory:
    found = asked(*question, **serving).memory.engine
    assert found is not None
    return found


STAGES, WIDE, GROUPS = {"tensor": 8, "pipeline": 2}, {"tensor": 16}, {"data": 2, "tensor": 8}


@pytest.mark.parametrize(
    ("engine", "model", "parallel", "serving", "fits", "timed"),
    [
        ("vllm", "deepseek-v3", STAGES, {}, True, True),
        ("vllm", "deepseek-v3", WIDE, {}, True, True),
        ("vllm", "deepseek-v3", GROUPS, {}, False, True),
        ("vllm", "deepseek-v3", GROUPS, {"data_parallel_size": 2}, True, False),
        ("vllm", "deepseek-v3", GROUPS, {"enable_expert_parallel": True}, True, False),
        ("vllm", "llama-3.1-405b", STAGES, {}, True, True),
        ("vllm", "llama-3.1-405b", WIDE, {}, True, True),
        ("sglang", "deepseek-v3", STAGES, {}, True, True),
        ("sglang", "deepseek-v3", WIDE, {"ep_size": 16}, True, True),
        ("sglang", "deepseek-v3", WIDE, {"attn_dp_size": 16}, False, False),
        ("sglang", "deepseek-v3", WIDE, {"attn_dp_size": 16, "cuda_graph_max_bs": 32}, True, False),
        ("sglang", "llama-3.1-405b", STAGES, {}, True, True),
        ("sglang", "llama-3.1-405b", WIDE, {}, True, True),
    ],
)
def test_whether_it_starts(
    engine: str, model: str, parallel: dict[str, int], serving: dict[str, Any], fits: bool, timed: bool
) -> None:
    answer = asked(engine, model, parallel, **serving)
    assert answer.fits is fits, answer.reason
    assert (answer.serving is not None) is timed
    assert any("between nodes" in each for each in answer.assumptions)


def test_the_network_takes_its_time() -> None:
    """Ranks of one tensor-parallel group in two nodes reduce over the network; a pipeline sends over it once."""
    wide, stages = (asked("vllm", "llama-3.1-405b", parallel).serving for parallel in (WIDE, STAGES))
    assert wide is not None
    assert stages is not None
    reduced = {part.name: part.seconds for part in wide.decode.parts}["all-reduce (tensor)"]
    within = {part.name: part.seconds for part in stages.decode.parts}["all-reduce (tensor)"]
    assert reduced > 2 * within


def test_widths_of_experts_over_replicas() -> None:
    """vLLM divides each expert among all ranks of an engine, whatever replicas they are of."""
    experts = sum(each.numel * each.times for each in held(resolve("deepseek-v3").spec) if each.kind == "experts")
    apart = logged("vllm", "deepseek-v3", GROUPS).weights_bytes
    together = logged("vllm", "deepseek-v3", GROUPS, data_parallel_size=2).weights_bytes
    assert apart - together == pytest.approx(experts / 16, rel=0.01)


def test_shared_experts_are_whole_where_groups_share_the_others() -> None:
    spec = resolve("deepseek-v3").spec
    shared = sum(each.numel * each.times for each in held(spec) if "shared_expert" in each.name and each.kind == "linear")
    parts = logged("vllm", "deepseek-v3", GROUPS, data_parallel_size=2).weights_bytes
    whole = logged("vllm", "deepseek-v3", GROUPS, enable_expert_parallel=True).weights_bytes
    assert whole - parts == pytest.approx(shared * 7 / 8, rel=0.02)


@pytest.mark.parametrize(("depth", "sizes"), [(61, [15, 15, 15, 16]), (62, [15, 15, 16, 16]), (32, [8, 8, 8, 8])])
def test_layers_of_sglangs_stages(depth: int, sizes: list[int]) -> None:
    found = [stage_layers(depth, (rank, 4)) for rank in range(4)]
    assert [layer for each in found for layer in each] == list(range(depth))
    assert list(map(len, found)) == sizes


@pytest.mark.parametrize("model", ["deepseek-v3", "qwen3-30b-a3b", "gpt-oss-120b"])
def test_sglangs_ranks_hold_every_expert_once(model: str) -> None:
    spec = resolve(model).spec

    def experts(ranks: Ranks) -> int:
        return sum(
            each.numel * each.times for each in held_by_sglang(spec, ranks) if each.kind == "experts" and len(each.shape) == 3
        )

    whole = experts(Ranks())
    for ranks in (Ranks(8), Ranks(8, 1, 8), Ranks(8, 1, 2), Ranks(8, 8, 8), Ranks(8, 2, 4)):
        assert experts(ranks) * 8 == whole, ranks


def test_attention_of_its_own_is_whole() -> None:
    """Of 16 ranks with attention of their own each holds all of it, and keeps what one GPU keeps of a token."""
    spec = resolve("qwen3-30b-a3b").spec

    def attention(ranks: Ranks) -> int:
        return sum(each.numel * each.times for each in held_by_sglang(spec, ranks) if "attn" in each.name)

    assert attention(Ranks(4, 4)) == attention(Ranks())
    assert attention(Ranks(4)) < attention(Ranks(4, 2)) < attention(Ranks(4, 4))
    serving = Serving(engine="sglang")
    assert cells(spec, serving, Ranks(4, 4).attention).full == cells(spec, serving, 1).full


def test_a_stage_has_room_for_its_layers_tokens() -> None:
    one, two = (logged("sglang", "deepseek-v3", parallel) for parallel in (WIDE, STAGES))
    assert two.cache_tokens > 1.8 * one.cache_tokens  # type: ignore[operator]


@pytest.mark.parametrize(
    ("engine", "model", "parallel", "serving", "error", "says"),
    [
        ("vllm", "llama-3.1-405b", GROUPS, {"data_parallel_size": 2}, InvalidJob, "share nothing"),
        ("vllm", "deepseek-v3", GROUPS, {"data_parallel_size": 3}, InvalidJob, "do not make up"),
        ("sglang", "llama-3.1-405b", WIDE, {"attn_dp_size": 16}, InvalidJob, "have no experts"),
        ("sglang", "deepseek-v3", WIDE, {"attn_dp_size": 3}, InvalidJob, "do not divide"),
        ("sglang", "deepseek-v3", WIDE, {"ep_size": 32}, InvalidJob, "do not divide"),
        ("sglang", "deepseek-v3", STAGES, {"engine_version": "0.5.10"}, NotModelled, "0.5.23"),
        ("sglang", "qwen3-next-80b-a3b", {"tensor": 2, "pipeline": 8}, {}, NotModelled, "not modelled of"),
        ("sglang", "mixtral-8x7b", {"tensor": 8, "data": 2}, {"attn_dp_size": 2}, NotModelled, "not modelled of"),
    ],
)
def test_what_is_refused(
    engine: str, model: str, parallel: dict[str, int], serving: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        asked(engine, model, parallel, **serving)


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        (
            "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 -pp 2 --nnodes 2",
            {"tensor": 8, "pipeline": 2, "gpus": 8, "nodes": 2},
        ),
        (
            "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 -dp 2 --enable-expert-parallel",
            {"tensor": 8, "data": 2, "enable_expert_parallel": True},
        ),
        ("vllm serve Qwen/Qwen3-30B-A3B -dp 4", {"data": 4, "data_parallel_size": 4}),
        ("vllm serve Qwen/Qwen3-8B -dp 4", {"data": None, "data_parallel_size": None}),
        (
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --nnodes 2 --node-rank 0 --ep 16",
            {"tensor": 16, "gpus": 8, "nodes": 2, "ep_size": 16},
        ),
        (
            "python -m sglang.launch_server --model-path deepseek-v3 --tp 16 --dp 16 --enable-dp-attention --nnodes 2",
            {"tensor": 16, "data": None, "gpus": 8, "nodes": 2, "attn_dp_size": 16},
        ),
        (
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --pp-size 2 --attn-dp-size 4",
            {"tensor": 8, "pipeline": 2, "attn_dp_size": 4},
        ),
    ],
)
def test_a_command_is_read(command: str, fields: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "serve.sh"
    path.write_text(command + "\n", encoding="utf-8")
    job = read_file(path).job
    parts = {**job["serving"], **job.get("parallelism", {}), **job.get("hardware", {})}
    assert {name: parts.get(name) for name in fields} == fields
