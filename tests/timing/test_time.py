"""Time: against measured runs, and what must hold for any."""

from __future__ import annotations

from functools import cache
from math import ceil
from statistics import median
from typing import Any

import pytest

from estimator import estimate
from estimator.contract.answer import Time
from estimator.hardware.accelerator import accelerator
from estimator.pipeline.run import played
from estimator.tape.kernels import kernels
from estimator.tape.tape import Work
from estimator.timing.kernels import Clock
from estimator.timing.measured import curves
from tests.held_out import held_out
from tests.jobs import job_of
from tests.records import of_every_family
from tests.speeds import Speed, a100_speeds, megatron_speeds

pytestmark = pytest.mark.slow

LLAMA = "llama-3.1-8b"
ZERO: dict[str, Any] = {"parallelism": {"strategy": "zero3"}, "training": {"precision": "deepspeed-bf16"}}


@cache
def speeds(group: str) -> list[Speed]:
    return list(a100_speeds() if group == "a100" else megatron_speeds())


def time_of(gpu: str = "h100", gpus: int = 1, parallelism: dict[str, Any] | None = None, **training: Any) -> Time:
    job = {
        "model": training.pop("model", LLAMA),
        "hardware": {"gpu": gpu, "gpus": gpus, "nodes": training.pop("nodes", 1)},
        "training": {"precision": "bf16-true", "activation_checkpointing": "full", **training},
        "parallelism": parallelism or {},
    }
    found = estimate(job).time
    assert found
    return found


def test_fine_tuning_on_a100() -> None:
    errors = [abs(one.error) for one in speeds("a100")]
    assert len(errors) == 141
    assert median(errors) < 0.03
    # two are worse than the rest: a small mixture of casts on two GPUs, and SantaCoder's GELU in nine kernels, 35.4 % too slow;
    # it was 33.8 % while what is between kernels, 0.059 then and 0.072 now, was fitted to steps below that are held out
    assert sorted(errors)[-3] < 0.26
    assert max(errors) < 0.355


def test_megatron_on_b200() -> None:
    errors = [abs(one.error) for one in speeds("b200")]
    assert len(errors) == 19
    assert median(errors) < 0.05
    assert max(errors) < 0.16
    for one in speeds("b200"):
        assert one.answer.time
        least, most = one.answer.time.range_seconds
        assert least < one.measured < most


def test_megatron_runs_that_nothing_was_made_with() -> None:
    """The rest of the same table, held out: other models, other ways to spread them, sequences of up to 131,072 tokens."""
    found = list(megatron_speeds(more=True))
    assert len(found) == 24
    assert all(held_out("b200_steps", one.name) for one in found)
    assert median(abs(one.error) for one in found) < 0.045
    assert max(abs(one.error) for one in found) < 0.135
    for one in found:
        assert one.answer.time
        assert one.answer.time.range_seconds[0] < one.measured < one.answer.time.range_seconds[1]


def test_parts_sum_to_the_step_and_lie_in_its_range() -> None:
    for one in [*speeds("b200"), *speeds("a100")]:
        time = one.answer.time
        assert time
        assert sum(part.seconds for part in time.parts) == pytest.approx(time.step_seconds)
        assert sum(part.share for part in time.parts) == pytest.approx(1)
        assert time.range_seconds[0] < time.step_seconds < time.range_seconds[1]
        assert time.bottleneck == time.parts[0].name
        assert 0 < time.mfu <= time.hfu < 1


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({"sequence_length": 4096}, {"sequence_length": 2048}),
        ({"micro_batch_size": 2}, {"micro_batch_size": 1}),
        ({"activation_checkpointing": "full"}, {"activation_checkpointing": "none"}),
        ({"gpu": "a100-80gb"}, {"gpu": "h100"}),
        ({"optimizer_implementation": "foreach"}, {"optimizer_implementation": "fused"}),
        ({"attention": "eager"}, {"attention": "sdpa"}),
        ({"attention": "flash_attention_triton"}, {"attention": "flash_attention_2"}),
        ({"gpus": 8, "parallelism": {"strategy": "ddp"}}, {}),
    ],
)
def test_what_takes_longer(more: dict[str, Any], less: dict[str, Any]) -> None:
    assert time_of(**more).step_seconds > time_of(**less).step_seconds


def test_accumulation_takes_as_much_longer_as_it_repeats() -> None:
    one, four = time_of(), time_of(gradient_accumulation_steps=4)
    parts = {part.name: part.seconds for part in one.parts}
    again = one.step_seconds - parts["optimizer"]
    assert 3 * again <= four.step_seconds - one.step_seconds < 3.2 * again  # gradients are then added


def test_a_card_without_curves_is_timed_by_shares() -> None:
    time = time_of("mi300x")
    assert "no kernel was measured" in time.range_reason
    assert time.range_seconds[1] > 2 * time.range_seconds[0]
    assert [part.name for part in time.parts] == ["arithmetic at a stated share of peak"]


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("all_reduce (data)", {"parallelism": {"strategy": "ddp"}, "hardware": {"gpu": "gaudi2", "gpus": 8}}),
        ("optimizer (host)", {**ZERO, "offload": {"optimizer": "cpu"}}),
        (
            "pipeline bubble",
            {"parallelism": {"pipeline": 4}, "training": {"implementation": "megatron", "precision": "megatron-bf16"}},
        ),
    ],
)
def test_what_a_card_without_curves_waits_for_is_counted(part: str, changes: dict[str, Any]) -> None:
    job = {"model": LLAMA, "hardware": {"gpu": "mi300x", "gpus": 8}, "training": {"precision": "bf16-mixed"}}
    assert seconds_of(part, {**job, **changes}) > 0


def test_a_card_that_borrows_curves_says_whose() -> None:
    assert "measured on" in time_of("a40").range_reason


def test_a_card_whose_clock_sinks_says_so() -> None:
    assert "products take" in time_of("h100").range_reason
    assert "products take" not in time_of("a100-80gb").range_reason


def seconds_of(part: str, job: dict[str, Any]) -> float:
    found = estimate(job).time
    assert found
    return {one.name: one.seconds for one in found.parts}.get(part, 0.0)


def offloaded(gpus: int = 4, nodes: int = 1, strategy: str = "zero3", **offload: str) -> dict[str, Any]:
    return {
        "model": LLAMA,
        "hardware": {"gpu": "a100-80gb", "gpus": gpus, "nodes": nodes},
        "training": {"precision": "deepspeed-bf16" if strategy.startswith("zero") else "bf16-mixed"},
        "parallelism": {"strategy": strategy},
        "offload": {"optimizer": "cpu", **offload},
    }


@pytest.mark.parametrize(("gpus", "nodes"), [(4, 1), (8, 1), (8, 2)])
def test_an_optimizer_on_the_host_has_a_nodes_memory(gpus: int, nodes: int) -> None:
    """Weights, gradients and two states in float32, of which all but gradients are written, too: 28 bytes for each parameter."""
    assert seconds_of("optimizer (host)", offloaded(gpus, nodes)) == pytest.approx(28 * 8.03e9 / nodes / 50e9, rel=0.01)


def test_torchs_optimizer_on_the_host_is_slower_than_deepspeeds() -> None:
    fully = offloaded(strategy="fsdp2", parameters="cpu", gradients="cpu")
    assert seconds_of("optimizer (host)", fully) > 2 * seconds_of("optimizer (host)", offloaded())


def test_states_on_nvme_are_read_and_written_besides() -> None:
    assert seconds_of("optimizer (host)", offloaded(optimizer="nvme")) > 9 * seconds_of("optimizer (host)", offloaded())


def test_what_is_copied_to_the_host_is_said() -> None:
    """ZeRO-3's gradients go there once, half a parameter's bytes each way; offloaded parameters come for forward and backward."""
    sent = {
        (one.operation, one.phase): one.bytes
        for one in estimate(offloaded(parameters="cpu")).communication
        if one.group == "host"
    }
    each = 2 * 8.03e9 / 4
    assert sent == {
        ("to_host", "backward"): pytest.approx(each, rel=0.01),
        ("from_host", "forward"): pytest.approx(each, rel=0.01),
        ("from_host", "backward"): pytest.approx(each, rel=0.01),
    }


def test_offloaded_activations_cross_the_bus_and_are_waited_for() -> None:
    job = {"model": LLAMA, "hardware": {"gpu": "a100-80gb"}, "training": {"precision": "bf16-true", "sequence_length": 8192}}
    answer = estimate({**job, "offload": {"activations": "cpu"}})
    sent = sum(one.bytes for one in answer.communication if one.group == "saved")
    assert sent == 2 * 32 * 8192 * 4096 * 2  # each layer's input, both ways
    assert seconds_of("copies (host)", {**job, "offload": {"activations": "cpu"}}) == pytest.approx(
        sent / (0.87 * 31.508e9), rel=0.01
    )
    assert seconds_of("copies (host)", job) == 0


def test_parameters_on_nvme_are_read_for_both_passes_and_written_once() -> None:
    """But for the billion of each rank that stay in the host's memory."""
    job = offloaded(gpus=2, parameters="nvme", optimizer="nvme") | {"model": "llama-2-13b"}
    outside, states = 2 * (13.016e9 - 2e9) / 6e9, 2 * 16 * 13.016e9 / 6e9
    assert seconds_of("optimizer (host)", job) == pytest.approx(28 * 13.016e9 / 50e9 + states + outside, rel=0.001)
    found = estimate(job).time
    assert found
    beside = [part.seconds for part in found.parts if not part.name.endswith(("(data)", "optimizer (host)"))]
    assert sum(beside) == pytest.approx(2 * outside, rel=0.001)


@pytest.mark.parametrize(("workers", "bound"), [(1, True), (4, False)])
def test_few_workers_bound_a_step_of_a_small_model(workers: int, bound: bool) -> None:
    job = {
        "model": "bert-base-cased",
        "hardware": {"gpu": "b200"},
        "training": {
            "sequence_length": 128,
            "micro_batch_size": 256,
            "precision": "bf16-true",
            "activation_checkpointing": "none",
            "trainable": {"last": 1},
        },
        "host": {"data_loader_workers": workers},
    }
    found = estimate(job).time
    assert found
    assert (found.bottleneck == "data loader") is bound
    assert (found.tokens_per_second == pytest.approx(600_000)) is bound


def _in_tiles(work: Work) -> float:
    """By how much more attention's kernels compute than was asked for: they take 64 queries and keys at a time."""
    if "attention" not in work.operation or not work.form:
        return 1.0
    _, queries, keys, *_ = work.form[0]
    return (ceil(queries / 64) * 64 / queries) * (ceil(keys / 64) * 64 / keys)


@pytest.mark.parametrize("case", of_every_family("fake_steps", 10), ids=lambda case: case["name"])
def test_whatever_computes_says_what_it_multiplies(case: dict[str, Any]) -> None:
    """A product whose sides are not known has no time; and none that is not brief takes ten times what the card's peaks would."""
    run = played(job_of(case), True)
    tape = run.simulation.build.tape
    clock = Clock(accelerator("a100-80gb"), curves("a100-80gb"))
    for phase in ("forward", "backward", "optimizer_step"):
        for work, _ in kernels(tape, phase):
            assert work.form or not work.flops, work
            dtype = work.form[1].name if work.form else "bfloat16"
            if dtype in ("bfloat16", "float16", "float32"):
                least = work.flops * _in_tiles(work) / 19.5e12 + work.nbytes / 2e12
                assert clock.kernel(work)[1] < 1e-4 + 10 * least, work


def test_rings_take_as_long_as_what_they_compute() -> None:
    """A ring's attention is that of all to all, but for the exchanges: as many scores, in parts."""
    job = {
        "model": LLAMA,
        "hardware": {"gpu": "h100", "gpus": 8},
        "training": {"implementation": "megatron", "sequence_length": 32768, "activation_checkpointing": "none"},
    }
    ring, whole = ({**job, "parallelism": {"context": 4, "context_exchange": how, "tensor": 2}} for how in ("p2p", "a2a"))
    assert seconds_of("attention", ring) == pytest.approx(seconds_of("attention", whole), rel=0.1)


@pytest.mark.parametrize(("engine", "more"), [("server", False), ("vllm", True), ("transformers", True)])
def test_a_step_waits_for_the_answers_that_are_written_on_its_gpu(engine: str, more: bool) -> None:
    training = {"precision": "bf16-true", "sequence_length": 1280, "micro_batch_size": 8, "gradient_accumulation_steps": 4}
    objective = {"type": "grpo", "prompt_length": 256, "generation": engine}
    job = {"model": "qwen2.5-1.5b", "hardware": {"gpu": "h100"}, "training": {**training, "objective": objective}}
    answer = estimate(job)
    assert answer.time
    written = seconds_of("writing answers", job)
    assert (written > 0) is more
    assert sum(part.seconds for part in answer.time.parts) == pytest.approx(answer.time.step_seconds)
    assert answer.time.tokens_per_second * answer.time.step_seconds == pytest.approx(32 * 1280)
    elsewhere = estimate({**job, "training": {**training, "objective": {"type": "grpo", "prompt_length": 256}}}).time
    assert elsewhere
    assert answer.time.step_seconds - written == pytest.approx(elsewhere.step_seconds, rel=0.02)
    if more:  # all at once: a server of the same model, asked the same
        serving = {"engine": engine, "context": 1280, "prompt_length": 256, "output_length": 1024, "concurrency": 32}
        alone = estimate({"model": "qwen2.5-1.5b", "task": "serve", "hardware": {"gpu": "h100"}, "serving": serving}).serving
        assert alone
        assert written == pytest.approx(alone.request_seconds)
