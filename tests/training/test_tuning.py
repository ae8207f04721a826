"""Training a part of a model."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Job, WillItFitError, estimate
from estimator.contract.errors import InvalidJob
from estimator.contract.job.adapter import PromptLearning
from estimator.families import heads
from estimator.specs.published import published
from estimator.specs.resolve import resolve
from estimator.verify.model import freeze, plain
from estimator.verify.prompts import prompted
from tests.tapes import SMALL, assert_folded_as_unrolled

PARTS = [
    "bias",
    {"last": 2},
    {"layers": "1, 3-4"},
    {"layers": "0", "outside": True},
    {"names": ["norm", "embed_tokens"]},
    {"names": ["self_attn"], "last": 3},
    {"names": ["lm_head"]},
    {"outside": True},
    {"badam": True, "layers": "1, 3-4"},
]

WITHOUT_BIASES = ("llama-3.2-1b", "mixtral-8x7b", "gemma-2-2b")


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    strategy = draw(st.sampled_from(["none", "ddp", "fsdp2"]))
    return {
        "model": {**SMALL, "num_hidden_layers": draw(st.integers(5, 9)), "attention_bias": True},
        "hardware": {"gpus": 1 if strategy == "none" else draw(st.sampled_from([2, 8]))},
        "parallelism": {"strategy": strategy},
        "training": {
            "precision": draw(st.sampled_from(["bf16-mixed", "32-true"])),
            "optimizer_implementation": draw(st.sampled_from(["foreach", "fused", "forloop"])),
            "sequence_length": draw(st.sampled_from([128, 300])),
            "gradient_accumulation_steps": draw(st.integers(1, 2)),
            "activation_checkpointing": draw(st.sampled_from(["none", "full", {"every": 2}, {"every": 3}, "sqrt"])),
            "trainable": draw(st.sampled_from(PARTS)),
        },
    }


@pytest.mark.parametrize("strategy", ["none", "ddp", "fsdp2"])
@pytest.mark.parametrize("checkpointing", ["none", "full", {"every": 3}, "sqrt"])
@pytest.mark.parametrize(
    "adapter",
    [
        {"type": "prompt-tuning", "virtual_tokens": 9},
        {"type": "p-tuning", "hidden": 64},
        {"type": "prefix-tuning"},
        {"type": "prefix-tuning", "projection": True, "dtype": "bf16"},
    ],
)
def test_layers_behind_prompts_are_those_that_would_be_played(adapter: dict[str, Any], checkpointing: Any, strategy: str) -> None:
    if adapter["type"] == "prefix-tuning" and checkpointing != "none":
        return
    job = {
        "model": {**SMALL, "num_hidden_layers": 8},
        "hardware": {"gpus": 1 if strategy == "none" else 2},
        "parallelism": {"strategy": strategy},
        "training": {
            "sequence_length": 300,
            "gradient_accumulation_steps": 2,
            "activation_checkpointing": checkpointing,
            "adapter": adapter,
        },
    }
    if checkpointing == "sqrt" and strategy == "fsdp2":
        return
    assert_folded_as_unrolled(job)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(jobs())
def test_layers_that_are_replayed_are_those_that_would_be_played(job: dict[str, Any]) -> None:
    try:
        estimate(job)
    except WillItFitError:
        return
    assert_folded_as_unrolled(job)


@pytest.mark.parametrize(
    "model",
    ["llama-3.2-1b", "gpt2", "mixtral-8x7b", "bert-base-cased", "gemma-2-2b", "phi-1.5", "bloom-560m", "vit-base-patch16-224"],
)
@pytest.mark.parametrize(
    "part", ["all", "bias", {"last": 2}, {"layers": "0, 2"}, {"last": 1, "outside": True}, {"names": ["weight"], "layers": "1-2"}]
)
def test_as_many_are_trained_as_torch_trains(model: str, part: Any) -> None:
    spec = {**published(model).architecture.model_dump(), "num_hidden_layers": 3}
    job = {"model": spec, "training": {"trainable": part, "sequence_length": 32}}
    if part == "bias" and model in WITHOUT_BIASES:
        with pytest.raises(InvalidJob, match="no parameter has bias in its name"):
            estimate(job)
        return
    counted = estimate(job).parameters
    read = Job.model_validate(job)
    built = resolve(read.model).spec
    with torch.device("meta"):
        real = plain(built, next(iter(heads(built.model_type))), torch.float32, "eager")
    freeze(real, read.training)
    assert counted.trainable == sum(p.numel() for p in real.parameters() if p.requires_grad)
    assert counted.total == sum(p.numel() for p in real.parameters())


@pytest.mark.parametrize("model", ["llama-3.2-1b", "gpt2", "pythia-160m", "qwen3-8b", "mixtral-8x7b"])
@pytest.mark.parametrize(
    "adapter",
    [
        {"type": "prompt-tuning", "virtual_tokens": 9},
        {"type": "p-tuning"},
        {"type": "p-tuning", "hidden": 100, "virtual_tokens": 50},
        {"type": "prefix-tuning"},
        {"type": "prefix-tuning", "projection": True},
        {"type": "prefix-tuning", "projection": True, "hidden": 77, "virtual_tokens": 3},
    ],
)
def test_as_many_are_trained_as_peft_trains(model: str, adapter: dict[str, Any]) -> None:
    spec = {**published(model).architecture.model_dump(), "num_hidden_layers": 3}
    job = {"model": spec, "training": {"adapter": adapter, "sequence_length": 64}}
    counted = estimate(job).parameters
    built = resolve(spec).spec
    with torch.device("meta"):
        asked = Job.model_validate(job).training.adapter
        assert isinstance(asked, PromptLearning)
        real = prompted(plain(built, "causal-lm", torch.float32, "eager"), asked)
    assert (counted.trainable, counted.total) == real.get_nb_trainable_parameters()


def test_a_prefix_is_not_recomputed_unless_that_is_asked() -> None:
    answer = estimate({"model": "gpt2", "training": {"adapter": {"type": "prefix-tuning"}}})
    assert answer.job["training"]["activation_checkpointing"] == "none"


@pytest.mark.parametrize("method", ["prompt-tuning", "p-tuning", "prefix-tuning"])
def test_learned_positions_are_for_virtual_tokens_too(method: str) -> None:
    answer = estimate({"model": "gpt2", "training": {"adapter": {"type": method, "virtual_tokens": 24}}})
    assert answer.job["training"]["sequence_length"] == 1000


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("states", ["kept", "dropped"])
def test_no_layers_that_lisa_draws_are_worse_than_the_worst(checkpointing: str, states: str) -> None:
    def peak(part: dict[str, Any]) -> int:
        training = {"sequence_length": 512, "activation_checkpointing": checkpointing, "trainable": {**part, "states": states}}
        return estimate({"model": {**SMALL, "num_hidden_layers": 6}, "training": training}).memory.peak_bytes

    drawn = [peak({"lisa": 2, "layers": f"{a}, {b}"}) for a, b in combinations(range(6), 2)]
    assert peak({"lisa": 2}) == max(drawn)


@pytest.mark.parametrize("checkpointing", ["none", "full", {"every": 3}, "sqrt"])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
def test_layers_under_masks_are_those_that_would_be_played(targets: Any, checkpointing: Any) -> None:
    training = {"sequence_length": 300, "gradient_accumulation_steps": 2, "activation_checkpointing": checkpointing}
    job = {"model": {**SMALL, "num_hidden_layers": 8}, "training": {**training, "pruning": {"targets": targets}}}
    assert_folded_as_unrolled(job)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_no_turn_of_badam_is_worse_than_the_worst(checkpointing: str) -> None:
    def peak(**part: Any) -> int:
        training = {"precision": "bf16-true", "sequence_length": 512, "activation_checkpointing": checkpointing}
        trained = {"training": {**training, "trainable": {"badam": True, **part}}}
        return estimate({"model": {**SMALL, "num_hidden_layers": 6}, **trained}).memory.peak_bytes

    assert peak() == max(peak(layers=str(layer)) for layer in range(6))


def test_lisa_that_drops_states_holds_those_of_few_layers() -> None:
    def resident(states: str) -> int:
        training = {"precision": "32-true", "sequence_length": 128, "trainable": {"lisa": 2, "states": states}}
        return estimate({"model": {**SMALL, "num_hidden_layers": 6}, "training": training}).memory.resident_bytes

    layer = 2 * 512 * (512 + 256 + 1) + 3 * 512 * 1408
    counters = 4 * 9 * 512  # of a fused Adam, one for each of a layer's parameters
    assert resident("kept") - resident("dropped") == 4 * layer * 2 * 4 + counters
