"""llama.cpp's times: what its passes do, and that their numbers are those of the rows that they name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from estimator import estimate
from estimator.contract.job import Serving
from estimator.families.spec import DecoderSpec
from estimator.hardware.accelerator import accelerator
from estimator.pipeline.run import played
from estimator.serving.llamacpp import passes as counting
from estimator.serving.llamacpp.cache import batch_of
from estimator.serving.llamacpp.ggml import Tensor
from estimator.serving.llamacpp.models import shape_of
from estimator.serving.llamacpp.passes import Pass
from estimator.serving.llamacpp.placement import EMBEDDING, OUTPUT, of_kind
from estimator.timing import ggml
from tests.fit_llamacpp import FREE, TABLES, error, loss, rows, spread
from tests.served_speeds import published, unfused
from tests.served_speeds import rows as speeds

MODELS = (
    "llama-3-8b",
    "gemma-3-1b",
    "gemma-3n-e2b-text",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "gpt-oss-20b",
    "Qwen/Qwen3.6-35B-A3B",
)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tokens", [1, 512])
def test_alike_layers_are_counted_once(model: str, tokens: int) -> None:
    """As if each were counted by itself: to the byte, but for matrices whose mean over layers is rounded down."""
    run = played({"model": model, "task": "serve", "hardware": {"gpu": "mi300x"}, "serving": {"engine": "llama.cpp"}}, False)
    spec, serving = run.model.spec.language_model, run.job.serving
    assert isinstance(spec, DecoderSpec)
    stored = {tensor.name: tensor.nbytes for tensor in of_kind("q4_k_m", spec)}
    stored.setdefault(OUTPUT, stored[EMBEDDING])
    shape, batch = shape_of(spec), replace(batch_of(serving, spec), tokens=tokens, outputs=1)
    alone: dict[tuple[object, ...], list[int]] = {(layer,): [layer] for layer in range(shape.layers)}
    every = counting._of_layers(shape, batch, stored, alone, [*range(shape.layers)])
    found = counting._counted(spec, batch, stored)
    for name in Pass.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(every, name), rel=1e-6), name


def test_a_token_reads_its_experts_only() -> None:
    """Of 128 experts 8: what a step reads grows with the sequences, until nearly all are chosen by some."""
    run = played(
        {"model": "qwen3-30b-a3b", "task": "serve", "hardware": {"gpu": "mi300x"}, "serving": {"engine": "llama.cpp"}}, False
    )
    spec = run.model.spec
    assert isinstance(spec, DecoderSpec)
    few, many = (
        counting.passes(run.job.serving.model_copy(update={"concurrency": each, "weights": "q8_0"}), spec, None).step
        for each in (1, 256)
    )
    assert few.block_bytes < 0.15 * many.block_bytes
    assert many.block_bytes == pytest.approx(30.5e9 * 34 / 32, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("vendor", TABLES)
def test_rows_give_the_numbers(vendor: str) -> None:
    """No number is nearer to the rows that it was fitted to if it is a tenth more or less."""
    known = {name: fact.value for name, fact in ggml.facts().items() if name.startswith(f"{vendor}.")}
    rates = ggml.rates(accelerator({"nvidia": "rtx-4090", "amd": "radeon-8060s", "apple": "m1-8gb"}[vendor]))
    assert rates
    for kind, free in FREE.items():
        least = loss(rates, rows(vendor, kind))
        for name in free[vendor]:
            assert getattr(rates, name) == known[f"{vendor}.{name}"]
            for by in (0.9, 1.1):
                assert loss(replace(rates, **{name: by * getattr(rates, name)}), rows(vendor, kind)) > least - 2e-3, (name, by)


@pytest.mark.slow
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize("kind", FREE)
def test_the_range_is_that_of_the_rows(vendor: str, kind: str) -> None:
    assert ggml.facts()[f"{vendor}.{kind}"].range == spread(vendor, kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vendor", "kind", "median", "near"),
    [
        ("nvidia", "decode", 0.05, 1.0),
        ("nvidia", "prefill", 0.1, 0.75),  # beyond are 70B in blocks on cards of 300 W, an A40 and an RTX 6000 Ada
        ("apple", "decode", 0.1, 1.0),
        ("apple", "prefill", 0.15, 1.0),
        ("amd", "decode", 0.06, 1.0),
        ("amd", "prefill", 0.3, 0.5),  # drivers of Vulkan differ by half
    ],
)
def test_rows_held_out(vendor: str, kind: str, median: float, near: float) -> None:
    """How far off rows are that no number was fitted to: the middle, and how many are within 30 %."""
    rates = ggml.rates(accelerator({"nvidia": "rtx-4090", "amd": "radeon-8060s", "apple": "m1-8gb"}[vendor]))
    assert rates
    sizes = [abs(np.expm1(-error(rates, one))) for one in rows(vendor, kind, held=True)]
    assert np.median(sizes) < median
    assert np.mean(np.array(sizes) <= 0.3) >= near


def test_gpus_wait_for_the_one_with_most_layers() -> None:
    """32 layers and the output over four: nine lie on the first; over eight, where five do, four passes are on their way."""
    serving = Serving(engine="llama.cpp")
    assert ggml.longest(serving, 32, 1) == 1
    assert ggml.longest(serving, 32, 4) == 9 / 32
    card, rates = accelerator("rtx-4090"), ggml.Rates(0, 1, 1)
    even, grown = Pass(moved_bytes=1e9), Pass(moved_bytes=2e9)
    found = counting.Passes(reading=even, many=8, last=grown, step=even, layers=32)
    one, four, eight = (
        sum(ggml.prompt_parts(rates, card, found, gpus, ggml.longest(serving, 32, gpus)).values()) for gpus in (1, 4, 8)
    )
    assert four == pytest.approx(one / 8 * (8 * 9 / 32 + 2 * 23 / 32))
    assert eight == pytest.approx(one / 8 * (8 / 4 + 2 * 3 / 4))


def test_an_expert_multiplies_whole_tiles() -> None:
    """128 experts of which 512 tokens choose eight each: 32 rows for each, of 64; of 8,192 tokens 512 rows, of 544. The last
    layer's multiply the one token that has logits."""
    run = played(
        {"model": "qwen3-30b-a3b", "task": "serve", "hardware": {"gpu": "mi300x"}, "serving": {"engine": "llama.cpp"}}, False
    )
    spec = run.model.spec
    assert isinstance(spec, DecoderSpec)
    for tokens, more in ((512, 64 / 32), (8192, 544 / 512)):
        asked = run.job.serving.model_copy(update={"prompt_length": tokens, "ubatch": tokens, "weights": "q8_0"})
        reading = counting.passes(asked, spec, None).reading
        experts = 2 * tokens * (spec.num_hidden_layers - 1) * 8 * 3 * spec.hidden_size * 768
        assert reading.tiled_flops - reading.flops == pytest.approx((more - 1) * experts, rel=1e-6)


def test_gpus_take_turns_with_a_token_and_share_a_prompt() -> None:
    one, four = (
        estimate(
            {
                "model": "llama-3-70b",
                "task": "serve",
                "hardware": {"gpu": "rtx-a6000", "gpus": gpus},
                "serving": {"engine": "llama.cpp", "weights": "q4_k_m", "prompt_length": 4096, "output_length": 128},
            }
        ).serving
        for gpus in (1, 4)
    )
    assert one
    assert four
    assert one.decode.step_seconds < four.decode.step_seconds < 1.1 * one.decode.step_seconds
    assert four.prefill.step_seconds < 0.5 * one.prefill.step_seconds
    assert one.sequences == four.sequences == 1


@pytest.mark.slow
def test_rows_that_were_read_when_all_was_fitted() -> None:
    """Tokens of answers in builds of 2025 and 2026 are within 30 %: hybrids and Hunyuan's mixture on the Radeon, and GeForce."""
    later = {row["row"] for row in published()["later"] if row["kind"] == "decode"}
    found = {one.row["row"]: one.error for one in speeds() if one.ours and one.row["row"] in later}
    assert len(found) == len(later)
    assert np.median(np.abs([*found.values()])) < 0.13
    assert max(map(abs, found.values())) < 0.3


def test_one_kernel_runs_several_nodes() -> None:
    """A router's six, a norm with its weights, and what eight experts say with their weights; of few tokens the gate's products
    and what is multiplied with both, and of one a product with what is added."""
    ops = ["mul_mat", "add", "rms_norm", "mul", "mul_mat", "soft_max", "argsort", "get_rows", "sum_rows", "clamp", "div"]
    ops += ["mul_mat_id", "mul_mat_id", "glu", "mul_mat_id", "mul", *["add"] * 8, "rms_norm", "mul", "rope", "set_rows"]
    run = [Tensor(op, (64, 1), [Tensor("none", (64, 64), nbytes=64), Tensor("none", (64, 1))]) for op in ops]
    always = 1 + 5 + 7 + 3
    for tokens, less in ((1, (always + 2 + 1, 1)), (2, (always + 2, 1)), (9, (always, 0))):
        assert counting._fused(run, counting._together(tokens, 8), 1) == less


def test_newer_builds_run_a_layer_in_fewer_kernels() -> None:
    """Less in each of 32 layers by eight: two norms with their weights, keys' rotation with their writing, a gate, whose products
    take one vector in blocks, and two sums after products. In the last a row is taken before one; a last norm follows."""
    asked = {"engine": "llama.cpp", "weights": "q4_k_m", "flash_attention": True}
    run = played({"model": "llama-3-8b", "task": "serve", "hardware": {"gpu": "rtx-4090"}, "serving": asked}, False)
    found = counting.passes(run.job.serving, run.model.spec.language_model, None)
    card = accelerator("rtx-4090")
    rates = ggml.rates(card)
    assert rates
    now, then = (sum(ggml.step_parts(rates, card, one.step, 1).values()) for one in (found, unfused(found)))
    assert then - now == pytest.approx(rates.kernel_us * 1e-6 * found.step.fused)
    assert found.step.fused == 8 * 32
