"""Kernels of a pass that are read from the tensors of an engine's layers, held against those that a tape has."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from estimator.contract.answer import ServingTime
from estimator.contract.errors import InvalidJob, NotModelled
from estimator.facts import catalogue
from estimator.families.spec import DecoderSpec
from estimator.hardware.accelerator import accelerator
from estimator.hardware.capability import gpu
from estimator.pipeline.run import Run, played
from estimator.serving.kernels import trace_kernels
from estimator.serving.speed import trace_speed
from estimator.specs.published import model_folder
from estimator.tape.tape import EXPERTS, Tape
from estimator.timing.engine import between_ranks, reduced_seconds, seconds_of
from estimator.timing.exchange import Wires
from estimator.timing.kernels import Clock
from estimator.timing.links import links
from estimator.timing.measured import curves


def asked(model: str, card: str = "h100", gpus: int = 1, **serving: Any) -> dict[str, Any]:
    lengths = {"prompt_length": 1000, "output_length": 500, "concurrency": 8}
    return {
        "model": model,
        "task": "serve",
        "hardware": {"gpu": card, "gpus": gpus},
        "parallelism": {"tensor": gpus},
        "serving": lengths | serving,
    }


def wires_of(run: Run, card: str) -> Wires:
    return Wires(curves(card), links(run.job.hardware, accelerator(card)), run.place)


def answered(model: str, card: str = "h100", gpus: int = 1, **serving: Any) -> ServingTime:
    found = estimate(asked(model, card, gpus, **serving)).serving
    assert found
    return found


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-8b", "mistral-7b-v0.3"])
@pytest.mark.parametrize("weights", ["bf16", "fp8"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_dense_models_kernels_take_as_long_as_the_tapes(model: str, weights: str, phase: str) -> None:
    """To 2 %: of additions and rotations the bytes are counted more roughly."""
    run = played(asked(model, weights=weights), False)
    spec = run.model.spec
    assert isinstance(spec, DecoderSpec)
    clock = Clock(accelerator("h100"), curves("h100"))

    def seconds(tape: Tape) -> float:
        return sum(seconds_of(run.job, spec, run.place, tape, clock, phase)[0].values())

    ways = [trace(run.job, spec, run.place, gpu(run.job, run.card)) for trace in (trace_kernels, trace_speed)]
    assert seconds(ways[0]) == pytest.approx(seconds(ways[1]), rel=0.02)


@pytest.mark.share(12)
@pytest.mark.parametrize("model", catalogue.names(model_folder()))
def test_no_token_comes_sooner_than_its_weights_can_be_read(model: str) -> None:
    """Of every model that vLLM serves in 16 bits; DBRX's experts were none of its kernels."""
    try:
        answer = estimate({"model": model, "task": "serve", "hardware": {"gpu": "h200", "gpus": 8}})
    except (InvalidJob, NotModelled):
        return
    active, bandwidth = answer.parameters.active, accelerator("h200").memory_bandwidth
    if answer.serving is None or not active or answer.job["serving"]["weights"] not in ("bf16", "fp16"):
        return
    assert bandwidth is not None
    assert answer.serving.decode.step_seconds > active * 2 / (bandwidth.value * 1e9 * answer.job["parallelism"]["tensor"])


MEASURED = {
    "sglang": [(1, 44.6), (2, 70.6), (4, 130.0), (8, 217.2), (16, 412.8), (64, 424.0)],
    "vllm": [(1, 49.1), (2, 75.1), (4, 124.0), (8, 228.4), (16, 420.4), (64, 431.9)],
}
"""Tokens, and microseconds of a layer's experts of Qwen3-30B-A3B in bf16 on an H100, if each token chooses experts of its own
as far as there are some: aiconfigurator-core 0.12.0 (PyPI, Apache-2.0), moe/sglang/0.5.14 and vllm/0.24.0, balanced."""


@pytest.mark.parametrize(("engine", "most"), [("vllm", 0.25), ("sglang", 0.25)])
def test_experts_that_a_batch_touches(engine: str, most: float) -> None:
    """Of as many experts as are chosen by chance, which are fewer than if each token had its own."""
    for tokens, microseconds in MEASURED[engine]:
        assert _layer_us(engine, tokens) / microseconds == pytest.approx(_fewer(tokens), rel=most)


def _fewer(tokens: int) -> float:
    """Experts that are chosen by chance, for each that so many tokens could choose."""
    return (1 - (1 - 8 / 128) ** tokens) / min(1.0, tokens * 8 / 128)


def _layer_us(engine: str, tokens: int) -> float:
    """Microseconds of a layer's experts."""
    run = played(asked("qwen3-30b-a3b", concurrency=tokens), False)
    spec = run.model.spec
    assert isinstance(spec, DecoderSpec)
    tape = trace_kernels(run.job, spec, run.place, gpu(run.job, run.card))
    clock = Clock(accelerator("h100"), curves("h100"), engine=engine)
    works = [work for work in tape.work if work.phase == "decode" and work.operation.endswith(EXPERTS)]
    assert works
    return 1e6 * sum(clock.kernel(work)[1] * work.slot.total for work in works if work.slot) / spec.num_hidden_layers


def test_experts_in_mxfp4_times_numbers_in_mxfp8() -> None:
    """Blackwell multiplies them twice as fast; a card that has no such kernels goes on in bf16. SGLang takes them unasked."""

    def seconds(**settings: Any) -> float:
        return answered("gpt-oss-120b", weights="mxfp4", prompt_length=8192, **settings).prefill.step_seconds

    assert seconds(card="b200", moe_mxfp8=True) < 0.7 * seconds(card="b200")
    assert seconds(card="h100", moe_mxfp8=True) == seconds(card="h100")
    assert seconds(card="b200", engine="sglang") < seconds(card="b200")


@pytest.mark.parametrize(("model", "least"), [("minimax-m2", 1.25), ("olmo-2-32b", 1.9)])
def test_ranks_exchange_what_a_norm_over_all_heads_needs(model: str, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third exchange in each layer, of sums of squares, which take nearly as long as few tokens' hidden states; or two, of
    queries and keys, which are gathered."""

    run = played(asked(model, "h200", 8), False)
    spec, wires = run.model.spec, wires_of(run, "h200")
    assert isinstance(spec, DecoderSpec)
    with_norms = between_ranks(spec, wires, 8, 8, 2)
    monkeypatch.setattr(type(spec), "heads_normed_together", None)
    assert with_norms > least * between_ranks(spec, wires, 8, 8, 2)


def test_a_step_reads_more_of_a_mixture_with_more_sequences() -> None:
    """Until all experts are read: then another token costs no more than in a dense model."""
    steps = [
        answered("qwen3-30b-a3b", concurrency=many, prompt_length=8, output_length=8).decode.step_seconds
        for many in (1, 8, 64, 256)
    ]
    assert steps == sorted(steps)
    assert steps[2] > 2.5 * steps[0]
    assert steps[3] < 1.3 * steps[2]


@pytest.mark.parametrize(
    ("model", "card", "gpus", "weights"),
    [
        ("gpt-oss-120b", "h100", 1, "mxfp4"),
        ("deepseek-v3", "h200", 8, "fp8-block"),
        ("gemma-3-27b", "h100", 1, "bf16"),
        ("mixtral-8x7b", "h100", 2, "bf16"),
        ("llama-4-scout", "h100", 8, "bf16"),
    ],
)
def test_what_has_no_tape_of_its_own_is_timed(model: str, card: str, gpus: int, weights: str) -> None:
    """No faster than reading the weights of one token's experts at the whole bandwidth, and with a prompt longer than a step."""
    found = answered(model, card, gpus, weights=weights)
    assert found.prefill.step_seconds > found.decode.step_seconds > 1e-3
    low, high = found.decode.range_seconds
    assert low < found.decode.step_seconds < high


@pytest.mark.parametrize(
    ("model", "engine", "arithmetic"),
    [
        ("bge-m3", "vllm", 2 * 24 * 12 * 1024**2 * 512 + 24 * 4 * 1024 * 512**2),
        ("bge-m3", "sglang", 2 * 24 * 12 * 1024**2 * 512 + 24 * 4 * 1024 * 512**2),
        ("modernbert-base", "vllm", 2 * 22 * (4 * 768**2 + 3 * 768 * 1152) * 512 + 4 * 768 * 512 * (8 * 512 + 14 * 128)),
        ("qwen3-embedding-0.6b", "vllm", 2 * 28 * (1024 * (4096 + 2048) + 3 * 1024 * 3072) * 512 + 28 * 4 * 2048 * 512**2),
    ],
)
def test_vectors_of_texts_take_the_arithmetic_of_their_layers(model: str, engine: str, arithmetic: int) -> None:
    """Products of all layers, queries with keys and these with values: of each of 16 texts of 512 tokens."""
    time = estimate({**asked(model), "serving": {"engine": engine, "context": 512, "concurrency": 16}}).time
    assert time
    assert time.flops_per_step == pytest.approx(16 * arithmetic, rel=0.01)
    assert time.tokens_per_second == pytest.approx(16 * 512 / time.step_seconds)
    assert 0.1 < time.mfu < 1


def test_a_clip_is_encoded_once_and_read_in_every_step() -> None:
    """Whisper large v3: 1500 frames through 32 layers of an encoder, whose keys and values each step reads."""
    found = answered("whisper-large-v3", prompt_length=4, output_length=100, concurrency=1)
    width, frames = 1280, 1500
    layer = 2 * frames * 12 * width**2 + 4 * width * frames**2
    keys = 2 * frames * 2 * width**2
    assert found.prefill.flops_per_step == pytest.approx(32 * (layer + keys), rel=0.02)
    assert found.decode.step_seconds > 32 * 2 * width * frames * 2 / 3.35e12


def test_ranks_exchange_what_each_half_of_a_model_that_hears_computes() -> None:
    """Frames twice in each layer of the encoder, in a prompt alone; a token three times in each layer of the decoder."""
    found = answered("whisper-large-v3", gpus=2, prompt_length=4, output_length=100, concurrency=1)
    prefill, decode = (
        next(part.seconds for part in phase.parts if part.name == "all-reduce (tensor)")
        for phase in (found.prefill, found.decode)
    )
    assert prefill - decode > 2 * 32 * 1500 * 1280 * 2 / 450e9
    wires = wires_of(played(asked("whisper-large-v3", gpus=2), False), "h100")
    assert decode == pytest.approx(97 * reduced_seconds(wires, 2, 2 * 1280), rel=0.1)
