"""vLLM's engine: which models it answers for, what it says when it does not start, and what differs between its releases."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import InvalidJob, NotModelled, estimate
from estimator.contract.answer import EngineMemory
from estimator.contract.job import Hardware, Serving
from estimator.hardware.capacity import capacity
from estimator.parallel.strategies import NONE
from estimator.parallel.topology import Topology
from estimator.serving.tensors import held, whole_tensors
from estimator.serving.vllm import settings
from estimator.serving.vllm.weights import rank_tensors, weights_bytes
from estimator.serving.weights import quantized
from estimator.specs.resolve import resolve
from estimator.tape.dtypes import bfloat16
from estimator.tape.gpu import AMPERE
from tests.serving.questions import EMBED, ENCODERS, asked, logged, unanswered

GIB = 2**30


def engine(model: Any, gpus: int = 1, gpu: str = "h100", **serving: Any) -> EngineMemory:
    return logged(asked("vllm", model, gpus, gpu, **serving))


NOT_SERVED = {
    "serving is not modelled": {"mistral_large4", "modernbert-decoder", "phi4_multimodal", "qwen3_asr"},
    "vLLM runs none": (ENCODERS - EMBED)
    | {"biogpt", "codegen", "gpt_neo", "jetmoe", "kolibri1", "lfm3"}
    | {"recurrent_gemma", "xglm", "youtu"},
    "vLLM runs older releases only": {"aya_vision", "bamba", "dots1", "minimax", "mllama", "mpt"},
}
"""Types of which no model of the catalogue answers, and why."""


def _why(message: str) -> str:
    if "is not modelled yet" in message:
        return "serving is not modelled"
    return "vLLM runs none" if "runs no" in message else "vLLM runs older releases only"


@pytest.mark.slow
def test_every_model_that_vllm_runs_has_an_answer() -> None:
    assert unanswered("vllm", _why) == (NOT_SERVED, 578)


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b", "gemma-3-27b", "llama-4-scout", "granite-4.0-h-1b", "mamba-1.4b"])
def test_parts_sum_to_the_share(name: str) -> None:
    found = engine(name, 8 if name == "deepseek-v3" else 4, weights="bf16")
    parts = sum(
        size or 0 for size in (found.weights_bytes, found.activation_bytes, found.non_torch_bytes, found.cuda_graph_bytes)
    )
    room = capacity(Hardware(gpu="h100")).memory_bytes
    assert room is not None
    assert found.cache_bytes is not None
    assert found.cache_bytes == max(0, -int(-(room * 0.92) // 1) - parts)


def test_a_context_that_it_would_not_start_with() -> None:
    """It says how long one would be, and that one is the longest."""
    answer = asked("vllm", "llama-3.1-8b", gpu="rtx-4090", context=131072)
    assert answer.verdict == "does not fit"
    assert "would not start" in answer.reason
    longest = answer.memory.engine.longest_context if answer.memory.engine else None
    assert longest
    assert f"the longest context that would is {longest}" in answer.reason
    assert asked("vllm", "llama-3.1-8b", gpu="rtx-4090", context=longest).fits
    assert asked("vllm", "llama-3.1-8b", gpu="rtx-4090", context=longest + 16).fits is False


def test_weights_that_leave_nothing() -> None:
    assert "nothing is left for its cache" in asked("vllm", "llama-3.1-70b").reason


def test_more_requests_than_the_cache_holds() -> None:
    found = engine("qwen3-8b", context=8192)
    assert found.concurrency is not None
    assert asked("vllm", "qwen3-8b", context=8192, concurrency=int(found.concurrency) + 1).fits is False
    assert asked("vllm", "qwen3-8b", context=8192, concurrency=int(found.concurrency * 0.9)).verdict == "fits"


def test_a_cache_that_it_may_not_find_room_for_is_tight() -> None:
    cache = asked("vllm", "llama-3.1-8b", concurrency=100).memory.kv_cache
    assert cache is not None
    assert cache.available_range_bytes is not None
    assert cache.available_bytes is not None
    between = (cache.available_range_bytes[0] + cache.available_bytes) // 2 // (cache.needed_bytes // 100)
    assert asked("vllm", "llama-3.1-8b", concurrency=between).verdict == "tight"


def test_without_a_gpu_its_cache_is_not_known() -> None:
    found = estimate({"model": "llama-3.1-8b", "task": "serve"}).memory.engine
    assert found is not None
    assert found.cache_bytes is None
    assert found.weights_bytes > 8_000_000_000 * 2


@pytest.mark.parametrize("other", ["transformers", "llama.cpp"])
def test_other_engines_say_none_of_it(other: str) -> None:
    assert asked("vllm", "llama-3.1-8b", engine=other, weights="fp16", kv_cache="fp16").memory.engine is None


@pytest.mark.parametrize(
    ("gpu", "version", "sequences", "tokens", "share"),
    [
        ("h100", "0.33", 1024, 8192, 0.92),
        ("h100", "0.19.1", 1024, 8192, 0.9),
        ("a100-80gb", "0.33", 256, 2048, 0.92),
        ("rtx-4090", "0.33", 256, 2048, 0.92),
        ("b200", "0.33", 1024, 16384, 0.92),
        ("b200", "0.27", 1024, 8192, 0.92),
    ],
)
def test_its_settings_by_gpu_and_release(gpu: str, version: str, sequences: int, tokens: int, share: float) -> None:
    serving = asked("vllm", "qwen3-8b", gpu=gpu, engine_version=version).job["serving"]
    settled = [serving[name] for name in ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")]
    assert settled == [sequences, tokens, share]


def test_graphs_are_in_the_share_since_0_21() -> None:
    before, since, eager = (
        engine("qwen3-8b", engine_version=v, enforce_eager=e).cuda_graph_bytes or 0
        for v, e in (("0.20", 0), ("0.21", 0), ("0.21", 1))
    )
    assert before == since > eager == 0
    charged = asked("vllm", "qwen3-8b", engine_version="0.21").memory.overhead
    assert "cuda_graphs" in charged
    assert "cuda_graphs" not in asked("vllm", "qwen3-8b", engine_version="0.20").memory.overhead


def test_sampling_by_sorting_takes_more() -> None:
    """For 1024 sequences and a vocabulary of 151,936 six more tensors of float32 logits, but for a row per multiprocessor."""
    logits = 1024 * 151936 * 4
    before, since = (engine("qwen3-14b", engine_version=version).activation_bytes or 0 for version in ("0.16", "0.17"))
    assert before - since == 6 * logits - 132 * 151936 * 4


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"engine_version": "0.7.3"}, NotModelled, "releases 0.8 to 0.33 are"),
        ({"engine_version": "0.34"}, NotModelled, "releases 0.8 to 0.33 are"),
        ({"engine_version": "latest"}, InvalidJob, "engine_version"),
        ({"engine": "transformers", "max_num_seqs": 8}, InvalidJob, "it is vLLM's"),
        ({"engine": "llama.cpp", "engine_version": "0.33"}, InvalidJob, "it is vLLM's"),
        ({"enable_expert_parallel": True}, InvalidJob, "have no experts"),
        ({"weights": "hqq-int4"}, InvalidJob, "vLLM loads no weights in hqq-int4"),
        ({"weights": "q4_k_m"}, InvalidJob, "GGUF"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        asked("vllm", "qwen3-0.6b", **changes)


def test_a_release_that_does_not_run_a_model() -> None:
    with pytest.raises(InvalidJob, match=r"up to 0\.28 only"):
        asked("vllm", "mpt-7b")
    assert asked("vllm", "mpt-7b", engine_version="0.28", context=2048).fits
    assert "no release" in settings.not_run(resolve("codegen-2b").spec, None)


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gemma-3-4b", "falcon-40b", "mamba2-130m", "gpt2"]
)
def test_one_rank_holds_every_parameter_once(name: str) -> None:
    """But for rows that fill the vocabulary up; and two ranks together hold each at least once."""
    spec = resolve(name).spec
    whole, one, two = whole_tensors(spec), held(spec), held(spec, 2)
    total = sum(each.numel * each.times for each in whole)
    padding = sum((one_.numel - each.numel) for each, one_ in zip(_embeddings(whole), _embeddings(one), strict=True))
    assert sum(each.numel * each.times for each in one) == total + padding
    assert total <= 2 * sum(each.numel * each.times for each in two) < 1.2 * total


def _embeddings(tensors: Any) -> list[Any]:
    return [each for each in tensors if each.kind == "embedding"]


def test_what_a_rank_holds_of_latents_heads_and_experts() -> None:
    def shapes(name: str, tensor: int, expert_ranks: int = 0) -> dict[str, tuple[int, ...]]:
        return {each.name: each.shape for each in held(resolve(name).spec, tensor, expert_ranks)}

    latent = shapes("deepseek-v3", 8)
    assert latent["self_attn.q_a_proj+kv_a_proj_with_mqa"] == (1536 + 576, 7168)  # on every rank
    assert latent["self_attn.q_b_proj"] == (24576 // 8, 1536)
    assert latent["mlp.experts.gate_up_proj"] == (256, 4096 // 8, 7168)
    assert latent["mlp.gate"] == (256, 7168)
    assert shapes("deepseek-v3", 8, 8)["mlp.experts.gate_up_proj"] == (256 // 8, 4096, 7168)
    assert shapes("qwen2.5-7b", 4)["self_attn.q_proj+k_proj+v_proj"] == (28 // 4 * 128 + 2 * 128, 3584)
    assert shapes("llama-3.1-8b", 16)["self_attn.q_proj+k_proj+v_proj"] == (2 * 128 + 2 * 128, 4096)  # key heads are copied
    assert shapes("falcon-7b", 1)["self_attention.query_key_value"] == (73 * 64, 4544)
    assert shapes("gpt-oss-20b", 2)["mlp.experts.gate_up_proj"] == (32, 2880, 2880)
    assert shapes("granite-3.1-8b", 2)["embed_tokens"] == (49216 // 2, 4096)  # 49,155 rows, filled up to 64


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("dbrx", "ffn.router.layer"),
        ("gemma-4-26b-a4b", "router.proj"),
        ("hunyuan-a13b", "mlp.gate.wg"),
        ("nemotron-3-super-120b-a12b", "mixer.fc1_latent_proj"),
        ("nemotron-3-super-120b-a12b", "mixer.fc2_latent_proj"),
    ],
)
def test_what_chooses_experts_is_whole_on_every_rank(name: str, tensor: str) -> None:
    """And not quantized; what makes the numbers that a latent mixture's experts get is, where linear layers are."""
    spec = resolve(name).spec
    one, four = (next(each for each in held(spec, ranks) if each.name == tensor) for ranks in (1, 4))
    assert one.shape == four.shape
    assert quantized(four, Serving(weights="fp8")) is not one.routes is ("latent" not in tensor)


@pytest.mark.parametrize(
    ("name", "whole", "divided"),
    [
        ("gemma-4-26b-a4b", "embed_vision.embedding_projection", ""),
        ("gemma-4-12b", "embed_audio.embedding_projection", "patch_dense"),
        ("kimi-k2.5", "mm_projector.in_proj", "mlp.fc1"),
        ("internvl3-8b", "multi_modal_projector.linear_1", "mlp.fc1"),
        ("mistral-small-3.1-24b", "multi_modal_projector.patch_merger.merging_layer", "multi_modal_projector.linear_1"),
    ],
)
def test_what_joins_a_tower_to_the_language_model_may_be_whole(name: str, whole: str, divided: str) -> None:
    """In vLLM: of Gemma 4 all of the tower, as transformers' modules."""
    spec = resolve(name).spec
    one, four = (
        {each.name: each.shape for each in rank_tensors(Serving(), spec, Topology(ranks, 1, ranks, NONE)) if each.seen}
        for ranks in (1, 4)
    )
    assert one[whole] == four[whole]
    assert (one == four) is (not divided)
    if divided:
        assert one[divided] != four[divided]


def test_room_for_the_layers_own_inputs() -> None:
    """As many as a pass has tokens, where the model sees."""
    few, many = (engine("gemma-4-e2b", max_num_batched_tokens=tokens).weights_bytes for tokens in (2048, 8192))
    assert many - few == pytest.approx(6144 * 35 * 256 * 2, abs=2 * 2**20)  # in blocks of torch's allocator


def test_a_model_whose_passes_are_not_modelled_has_no_time() -> None:
    answer = asked("vllm", "clip-vit-large-patch14", context=77)
    assert answer.fits
    assert answer.serving is None
    assert answer.time is None
    assert "the time of a served model of this kind" in answer.not_modelled


@pytest.mark.parametrize(
    ("model", "gpu", "serving", "says"),
    [
        ("llama-3.1-8b", "rtx-4090", {"context": 131072}, "serving.context 43008 would need"),
        ("qwen3-32b", "h100", {"context": 8192, "concurrency": 64}, "serving.concurrency 4 would need"),
    ],
)
def test_the_smallest_edit_with_which_it_would_start_comes_first(
    model: str, gpu: str, serving: dict[str, Any], says: str
) -> None:
    """And it does start with it."""
    answer = asked("vllm", model, gpu=gpu, **serving)
    assert answer.fits is False
    first = answer.suggestions[0]
    assert first.startswith(says)
    assert first.endswith("it fits")
    name, value = first.split()[0].removeprefix("serving."), int(first.split()[1])
    assert asked("vllm", model, gpu=gpu, **{**serving, name: value}).fits
    assert not asked("vllm", model, gpu=gpu, **{**serving, name: value + value // 4 + 16}).fits


def test_an_edit_is_said_in_the_engines_own_flag() -> None:
    assert "(--max-model-len 43008)" in asked("vllm", "llama-3.1-8b", gpu="rtx-4090", context=131072).reason


@pytest.mark.parametrize("name", ["trinity-mini", "ernie-4.5-21b-a3b", "glm-4.5-air", "minimax-m2", "mimo-v2-flash"])
def test_what_chooses_experts_is_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the types of which vLLM's gates say so; and nowhere else."""
    spec, asked_for = resolve(name).spec, Serving(engine_version="0.33")
    gates = sum(each.numel * each.times for each in held(spec) if each.end == "gate")

    def resident() -> int:
        return weights_bytes(asked_for, spec, Topology(1, 1, 1, NONE), bfloat16, AMPERE)

    wide = resident()
    monkeypatch.setattr(type(spec), "float32_router", False)
    assert gates
    assert wide - resident() == pytest.approx(gates * 2, rel=0.02)
