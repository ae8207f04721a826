"""SGLang's engine: which models it answers for, what it takes unasked, and what it says when it does not start."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import InvalidJob, NotModelled, estimate
from estimator.contract.answer import EngineMemory
from estimator.contract.job import Serving
from estimator.serving.sglang.backend import held_by_sglang
from estimator.serving.sglang.pools import cells, pools, slots
from estimator.serving.sglang.ranks import Ranks
from estimator.serving.sglang.settings import captured_prompts
from estimator.specs.resolve import resolve
from tests.serving.questions import ENCODERS, asked, logged, unanswered

GIB = 2**30


def engine(model: Any, gpus: int = 1, gpu: str = "h100", **serving: Any) -> EngineMemory:
    return logged(asked("sglang", model, gpus, gpu, **serving))


NOT_SERVED = {
    "serving is not modelled": (ENCODERS - {"bert", "xlm-roberta"})
    | {"gemma3_text", "minimax", "mistral_large4", "modernbert-decoder", "phi4_multimodal", "qwen3_asr"},
    "takes no attention of a server's": {
        "bamba",
        "biogpt",
        "bloom",
        "codegen",
        "falcon",
        "gpt_neo",
        "jamba",
        "mpt",
        "xglm",
        "zamba2",
    },
    "its backend for transformers' models": {
        "axk1",
        "flex_olmo",
        "jetmoe",
        "lfm3",
        "qwen2_5_omni_thinker",
        "recurrent_gemma",
        "youtu",
    },
    "no implementation of its own, and attention": {"flint"},
    "is not known": {"exaone4_5", "hyperclovax_vision_v2"},
}
"""Types of which no model of the catalogue answers, and why."""


def _why(message: str) -> str:
    return next(why for why in NOT_SERVED if why in message or "is not modelled yet" in message)


@pytest.mark.slow
def test_every_model_that_sglang_runs_has_an_answer() -> None:
    assert unanswered("sglang", _why) == (NOT_SERVED, 510)


@pytest.mark.parametrize(
    ("gpu", "gpus", "version", "chunk", "graphs", "share"),
    [
        # (GPU - 512 - 1.5 chunk - 128 GPUs - 2 graphs - 8 captured prompts) / GPU, in MiB of nvidia-smi
        ("h100", 1, "0.5.23", 8192, 256, 0.83),
        ("h100", 4, "0.5.23", 8192, 512, 0.819),
        ("h100", 1, "0.5.9", 8192, 256, 0.835),  # prompts are not captured
        ("h100", 1, "0.5.1", 8192, 160, 0.874),  # as its log of a Qwen3-8B on an H100 has it
        ("rtx-4090", 1, "0.5.23", 4096, 48, 0.704),
        ("rtx-4090", 1, "0.5.14", 2048, 24, 0.833),
        ("rtx-4090", 4, "0.5.4", 2048, 80, 0.827),
        ("a100-40gb", 1, "0.5.23", 4096, 32, 0.823),
        ("t4", 1, "0.5.23", 2048, 8, 0.735),
        ("b200", 1, "0.5.23", 16384, 512, 0.854),
        ("mi300x", 1, "0.5.23", 16384, 512, 0.867),
    ],
)
def test_its_settings_by_gpu_and_release(gpu: str, gpus: int, version: str, chunk: int, graphs: int, share: float) -> None:
    serving = asked("sglang", "qwen3-8b", gpus, gpu, engine_version=version).job["serving"]
    assert (serving["chunked_prefill_size"], serving["cuda_graph_max_bs"]) == (chunk, graphs)
    assert serving["mem_fraction_static"] == pytest.approx(share, abs=1e-3)


def test_a_model_that_sees_gets_less_and_latents_capture_otherwise() -> None:
    """SigLIP's 27 layers of 1152 are 1.42 times a ViT-L/14; of latent attention 1.5 GiB are kept for graphs of prompts."""
    alone, sees = (asked("sglang", model).job["serving"]["mem_fraction_static"] for model in ("gemma-3-1b", "paligemma-3b"))
    without = (81559 - 512 - 1.5 * 8192 - 128 - 512) / 81559
    assert sees == pytest.approx(round(without, 3) * 0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1)), abs=1e-6)
    assert alone == pytest.approx(without - 8 * captured_prompts(8192) / 81559, abs=1e-3)
    latent = asked("sglang", "deepseek-v2-lite").job["serving"]["mem_fraction_static"]
    assert latent == pytest.approx(without - 1536 / 81559, abs=1e-3)


def test_some_that_see_read_texts_unasked_or_capture_prompts_all_the_same() -> None:
    """Images of Gemma 3 and Llama 4 are not read unless that is asked for, and Llama 4's tower is not loaded then."""
    text, whole, captured = (
        asked("sglang", model).job["serving"]["mem_fraction_static"] for model in ("gemma-3-1b", "gemma-3-4b", "qwen3.5-4b")
    )
    assert whole == text
    size = 24 * 1024**2
    tower = resolve("qwen3.5-4b").spec.vision_config.config()  # type: ignore[attr-defined]
    larger = tower.get("num_hidden_layers", 24) * tower["hidden_size"] ** 2 / size
    assert captured == pytest.approx(text * 0.95 * max(0.8, min(1.05, 1 - 0.1 * (larger - 1))), abs=1e-6)
    tensors = held_by_sglang(resolve("llama-4-scout").spec, Ranks(4))
    assert not any(each.seen for each in tensors)
    assert any(each.seen for each in held_by_sglang(resolve("gemma-3-4b").spec, Ranks(1)))


def test_what_is_captured_of_prompts() -> None:
    assert captured_prompts(32) == 8
    assert captured_prompts(8192) == 8 + 14 + 8 + 8 + 12 + 8


WEIGHTS = {"deepseek-v3": "fp8-block", "gpt-oss-20b": "mxfp4"}


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b", "gemma-3-27b", "llama-4-scout", "granite-4.0-h-1b", "mamba-1.4b"])
def test_parts_sum_to_the_gpu(name: str) -> None:
    answer = asked(
        "sglang",
        name,
        8 if name == "deepseek-v3" else 4 if name == "llama-4-scout" else 1,
        "h200",
        weights=WEIGHTS.get(name, "bf16"),
    )
    found, memory = answer.memory.engine, answer.memory
    assert found is not None
    assert found.cache_bytes is not None
    assert memory.capacity_bytes is not None
    rest = memory.capacity_bytes - sum(memory.overhead.values()) - memory.at_peak.get("activations", 0) - found.weights_bytes
    assert found.activation_bytes is None
    assert rest - found.cache_bytes >= -1
    if found.states is None:
        assert rest - found.cache_bytes < 2**20
    else:
        assert found.cache_bytes >= rest * 0.47  # of states alone: keys and values have no room that they could use


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v2-lite", "gpt-oss-20b", "granite-4.0-h-1b", "llama-3.2-11b-vision"])
def test_pools_never_take_more_than_there_is(name: str) -> None:
    spec, serving = resolve(name).spec, Serving(engine="sglang", engine_version="0.5.23")
    each = cells(spec, serving, 1)
    last = 0
    for rest in (0, 10**6, 10**8, 10**9 + 7, 10**10, 7 * 10**10):
        found = pools(rest, each, serving)
        assert found.nbytes <= rest
        assert found.tokens >= last
        assert found.running <= max(found.tokens // 2, 0)
        last = found.tokens


def test_a_window_has_a_pool_of_its_own_where_sglang_knows_it() -> None:
    """gpt-oss: 12 layers see everything, 12 a window; Gemma 3's windows keep all tokens; Llama 4's have a pool since 0.5.8."""
    found = engine("gpt-oss-20b", weights="mxfp4")
    assert found.window_tokens == int((found.cache_tokens or 0) * 0.8)
    token = 12 * 8 * 64 * 2 * 2
    assert found.cache_bytes == (found.cache_tokens or 0) * token + found.window_tokens * token
    less = engine("gpt-oss-20b", weights="mxfp4", swa_full_tokens_ratio=0.1)
    assert (less.cache_tokens or 0) > 1.6 * (found.cache_tokens or 0)
    assert engine("gemma-3-4b").window_tokens is None
    before, since = (engine("llama-4-scout", 8, engine_version=version) for version in ("0.5.7", "0.5.8"))
    assert before.window_tokens is None
    assert since.window_tokens is not None


def test_states_take_their_part_of_the_rest() -> None:
    """In bf16 the last inputs of a convolution, in float32 the state; five slots to a request, or one without cached prefixes."""
    spec = resolve("granite-4.0-h-1b").spec
    serving = Serving(engine="sglang", engine_version="0.5.23")
    each = cells(spec, serving, 1)
    layers = [layer for layer in spec.cache_layers if layer.kind == "state"]
    assert each.states == sum(layer.convolved * 2 + (layer.state - layer.convolved) * 4 for layer in layers)
    found = pools(10 * GIB, each, serving)
    assert found.states == int(10 * GIB * 0.9 / 1.9 // each.states) - 1
    assert found.running == found.states // 5 == found.states // slots(serving, each)
    alone = serving.model_copy(update={"disable_radix_cache": True, "max_running_requests": 7})
    assert (pools(10 * GIB, each, alone).states, pools(10 * GIB, each, alone).running) == (7, 7)
    assert pools(10 * GIB, each, alone).tokens > found.tokens


def test_what_a_token_takes() -> None:
    def token(name: str, tensor: int = 1, **serving: Any) -> float:
        return cells(resolve(name).spec, Serving(engine="sglang", **serving), tensor).full

    assert token("llama-3.1-8b") == 32 * 8 * 256 * 2
    assert token("llama-3.1-8b", 4) == 32 * 2 * 256 * 2
    assert token("llama-3.1-8b", 16) == 32 * 1 * 256 * 2  # a head of keys each, copied
    assert token("deepseek-v3", 8) == 61 * 576 * 2  # a latent is on every rank
    assert token("llama-3.1-8b", kv_cache="fp8") == 32 * 8 * 256
    assert token("llama-3.1-8b", kv_cache="fp4") == 32 * 8 * 256 * 9 // 16  # half a byte, and a scale for sixteen
    assert token("bert-base-uncased") == 12 * 12 * 64 * 2 * 2  # an encoder's keys and values have room, too
    assert token("whisper-large-v3") == (32 + 2 * 32) * 20 * 128 * 2  # its encoder's layers have room that they do not use


def test_weights_that_leave_nothing() -> None:
    """And the smallest fraction that it says would do."""
    reason = asked("sglang", "llama-3.1-70b", 2).reason
    assert "SGLang would not start: weights of" in reason
    smallest = float(reason.split("more than ")[1].split(" ")[0])
    assert "would not start" in asked("sglang", "llama-3.1-70b", 2, mem_fraction_static=smallest - 0.002).reason
    assert "would not start" not in asked("sglang", "llama-3.1-70b", 2, mem_fraction_static=smallest + 0.001, context=16).reason
    assert "more than the" in asked("sglang", "llama-3.1-405b").reason


def test_a_context_that_its_cache_does_not_hold() -> None:
    """It starts, and refuses such requests."""
    answer = asked("sglang", "llama-3.1-8b", gpu="rtx-4090", context=131072)
    longest = answer.memory.engine.longest_context if answer.memory.engine else None
    assert answer.verdict == "does not fit"
    assert f"{longest} is the longest" in answer.reason
    assert asked("sglang", "llama-3.1-8b", gpu="rtx-4090", context=longest).fits
    assert asked("sglang", "llama-3.1-8b", gpu="rtx-4090", context=(longest or 0) + 1).fits is False


def test_what_is_left_free_must_hold_a_pass() -> None:
    assert "would run out of memory" in asked("sglang", "qwen3-8b", mem_fraction_static=0.995).reason
    assert asked("sglang", "qwen3-8b", mem_fraction_static=0.995, chunked_prefill_size=1024).fits


def test_what_it_suggests() -> None:
    """Weights in fewer bits, which were tried; and what would make each part smaller."""
    found = asked("sglang", "llama-3.1-70b", 2).suggestions
    assert found[0].startswith("serving.weights fp8 would need")
    assert any("a larger serving.mem_fraction_static" in each for each in found)
    assert "activations: a smaller serving.chunked_prefill_size" in found


def test_more_requests_than_the_cache_holds() -> None:
    for model in ("qwen3-8b", "gpt-oss-20b", "granite-4.0-h-1b"):
        found = engine(model, context=8192)
        assert found.concurrency is not None
        assert asked("sglang", model, context=8192, concurrency=int(found.concurrency) + 2).fits is False
        assert asked("sglang", model, context=8192, concurrency=int(found.concurrency * 0.9)).fits


def test_a_cache_that_it_may_not_find_room_for_is_tight() -> None:
    cache = asked("sglang", "llama-3.1-8b", 4, concurrency=100).memory.kv_cache
    assert cache is not None
    assert cache.available_range_bytes is not None
    assert cache.available_bytes is not None
    between = (cache.available_range_bytes[0] + cache.available_bytes) // 2 // (cache.needed_bytes // 100)
    assert asked("sglang", "llama-3.1-8b", 4, concurrency=between).verdict == "tight"


def test_fewer_tokens_and_requests_where_they_are_asked_for() -> None:
    found = engine("qwen3-8b", max_total_tokens=10001, page_size=64, max_running_requests=50)
    assert (found.cache_tokens, found.running_requests, found.longest_context) == (9984, 50, 9984)
    assert engine("qwen3-8b", context=100).running_requests == 4096
    assert engine("qwen3-8b", context=40960).running_requests == 4096
    assert engine("llama-3.1-8b", gpu="rtx-4090").running_requests == 2048


def test_without_a_gpu_its_pools_are_not_known() -> None:
    found = estimate({"model": "llama-3.1-8b", "task": "serve", "serving": {"engine": "sglang"}}).memory.engine
    assert found is not None
    assert found.cache_bytes is None
    assert found.weights_bytes > 8_000_000_000 * 2


def test_an_answer_is_a_job() -> None:
    answer = asked("sglang", "qwen3-8b")
    assert estimate(answer.job).memory == answer.memory


def test_a_cache_in_four_bits_has_no_time() -> None:
    answer = asked("sglang", "qwen3-8b", kv_cache="fp4")
    assert answer.fits
    assert answer.serving is None
    assert "the time of a served model of this kind" in answer.not_modelled
    assert asked("sglang", "qwen3-8b").serving is not None


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"engine_version": "0.4.9"}, NotModelled, r"releases 0\.4\.10 to 0\.5\.23 are"),
        ({"engine_version": "0.33"}, NotModelled, r"releases 0\.4\.10 to 0\.5\.23 are"),
        ({"engine": "vllm", "mem_fraction_static": 0.8}, InvalidJob, "it is SGLang's"),
        ({"engine": "transformers", "chunked_prefill_size": 8}, InvalidJob, "it is SGLang's"),
        ({"engine": "vllm", "kv_cache": "fp4"}, InvalidJob, "fp4 is SGLang's"),
        ({"engine": "llama.cpp", "kv_cache": "fp4", "weights": "fp16"}, InvalidJob, "fp4 is SGLang's"),
        ({"engine": "transformers", "engine_version": "0.5.23"}, InvalidJob, "it is vLLM's and SGLang's"),
        ({"max_num_seqs": 8}, InvalidJob, "it is vLLM's"),
        ({"gpu_memory_utilization": 0.8}, InvalidJob, "mem_fraction_static"),
        ({"mem_fraction_static": 1.5}, InvalidJob, "mem_fraction_static"),
        ({"mamba_full_memory_ratio": 0.5}, InvalidJob, "have no states"),
        ({"swa_full_tokens_ratio": 0.5}, InvalidJob, "keeps all tokens"),
        ({"weights": "hqq-int4"}, InvalidJob, "SGLang loads no weights in hqq-int4"),
        ({"weights": "q4_k_m"}, InvalidJob, "GGUF"),
        ({"weights": "fp32"}, NotModelled, "fp32"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        asked("sglang", "qwen3-0.6b", **changes)
