"""Every optimizer by itself: what it keeps, and the peak of its step, against the real objects (tests/judge/optimizers.py)."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

from estimator import Job, estimate
from estimator.contract.job.optimizer import ALIASES, IMPLEMENTATIONS
from estimator.families.parameter import Parameter
from estimator.tape.dtypes import BY_NAME
from estimator.tape.replay import replay
from estimator.tape.tape import Tape
from estimator.tape.tensor import empty
from estimator.training.optimizers import optimizer
from tests.jobs import ROOT
from tests.judge.optimizers import FILE, TYPES, UNJUDGED, Model, ask, job_of, kept_with_wide_embeddings
from tests.tapes import SMALL, assert_folded_as_unrolled

RECORDED: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"counted": {}}
NEEDS = {
    "torchao": "torchao",
    "galore-torch": "galore_torch",
    "apollo-torch": "apollo_torch",
    "lion-pytorch": "lion_pytorch",
    "pytorch-optimizer": "pytorch_optimizer",
    "llama-cookbook": "llama_cookbook",
}
"""What a library is imported as, where it is no development dependency."""
EVERY = [(name, by, precision) for name, kinds in IMPLEMENTATIONS.items() for by in kinds for precision in TYPES]
ALL = [case for case in EVERY if case[1] not in UNJUDGED]


def predicted(name: str, implementation: str, precision: str, **settings: Any) -> dict[str, int]:
    """What the tape says of the same parameters."""
    tape = Tape()
    tape.begin("load")
    dtype = BY_NAME["fp32" if precision == "32-true" else "bf16"]
    parameters = []
    for number, (label, p) in enumerate(Model().named_parameters()):
        tensor = empty(tape, tuple(p.shape), dtype)
        parameters.append(Parameter(f"{number} {label}", tensor, tensor, None, p.numel(), p.numel()))
    matrices = frozenset(p.name for p in parameters if ".up.weight" in p.name or ".down.weight" in p.name)
    embeddings = frozenset(p.name for p in parameters if "embed" in p.name)
    asked = optimizer(job_of(name, implementation, precision, **settings).training, matrices, embeddings)
    tape.begin("states")
    states = asked.states(tape, parameters)
    tape.begin("optimizer_step")
    asked.step(tape, parameters)
    tape.finish()
    _, made, step = replay(tape).phases
    assert step.start_bytes == step.end_bytes, "a step leaves nothing behind"
    del states
    return {"states": made.end_bytes - made.start_bytes, "step": step.peak_bytes - step.start_bytes}


@pytest.mark.parametrize(("name", "by", "precision"), ALL, ids=[" ".join(case) for case in ALL])
def test_an_optimizer_keeps_and_needs_what_the_real_one_does(name: str, by: str, precision: str) -> None:
    recorded = RECORDED["counted"][f"{name} {by} {precision}"]
    said = predicted(name, by, precision)
    assert {key: said[key] for key in recorded} == recorded


@pytest.mark.share(6)
@pytest.mark.parametrize(("name", "by", "precision"), ALL, ids=[" ".join(case) for case in ALL])
def test_the_real_one_does_as_recorded(name: str, by: str, precision: str) -> None:
    if by in NEEDS and find_spec(NEEDS[by]) is None:
        pytest.skip(f"{by} is not installed: its record is what is tested")
    assert ask(name, by, precision) == RECORDED["counted"][f"{name} {by} {precision}"]


@pytest.mark.parametrize("states", ["fp32", "bf16", "fp16"])
def test_moments_of_few_bits_are_copied_to_32_by_fused_adam(states: str) -> None:
    """fused_adam.py, `get_unscaled_state`: and bf16 ones back, one by one, the largest of which is the embedding's."""
    said = predicted("adamw", "transformer-engine", "bf16-true", optimizer_states=states)
    wide = predicted("adamw", "transformer-engine", "bf16-true")
    assert (said["step"] == 0) == (states == "fp32")
    if states == "bf16":
        assert wide["states"] - 512 - 512 < said["step"] - 512 * 320 * 2 < wide["states"]
    if states != "fp32":
        assert said["states"] < 0.51 * wide["states"] + 2 * 512 * 20


@pytest.mark.parametrize("name", ["adamw-8bit", "lion-8bit"])
def test_the_trainer_leaves_embeddings_in_32_bits(name: str) -> None:
    narrow, wide = (predicted(name, "bitsandbytes", "bf16-true", optimizer_wide_embeddings=on)["states"] for on in (False, True))
    moments, elements = (2 if name == "adamw-8bit" else 1), 120 * 320
    assert wide - narrow == moments * (elements * 4 - elements - 1024)  # 150 scales of 4 bytes take 1024
    assert wide == kept_with_wide_embeddings(job_of(name, "bitsandbytes", "bf16-true"))


@pytest.mark.parametrize("alias", ALIASES)
def test_the_trainers_names_are_understood(alias: str) -> None:
    training = Job.model_validate({"model": "gpt2", "training": {"optimizer": alias}}).training
    assert training.optimizer in IMPLEMENTATIONS
    assert {name: getattr(training, name) for name in ALIASES[alias]} == ALIASES[alias]


def test_what_is_given_beside_a_trainers_name_is_kept() -> None:
    given = {"optimizer": "adamw_torch", "optimizer_implementation": "forloop"}
    assert Job.model_validate({"model": "gpt2", "training": given}).training.optimizer_implementation == "forloop"


def test_each_optimizer_in_backward_has_its_own_tables() -> None:
    """bitsandbytes keeps its tables of values per optimizer object."""
    training = {"precision": "bf16-true", "sequence_length": 64, "optimizer": "adamw-8bit"}
    one, many = (estimate({"model": "gpt2", "training": {**training, "optimizer_in_backward": on}}) for on in (False, True))
    matrices = 12 * 4 + 2  # of at least 4096 elements; and no vector of gpt2 has so many
    assert many.memory.resident_bytes - one.memory.resident_bytes == (matrices - 1) * 2 * 1024


def test_paged_states_are_spoken_of() -> None:
    answer = estimate({"model": "llama-2-7b", "training": {"precision": "bf16-true", "optimizer": "paged-adamw-8bit"}})
    assert any(said.startswith("13.48 GB of paged optimizer states") for said in answer.warnings)
    assert answer.memory.at_peak["optimizer_states"] < 0.3e9


PARTS: list[dict[str, Any]] = [
    {"precision": "bf16-true"},
    {"precision": "32-true", "optimizer_in_backward": True},
    {"precision": "32-true", "adapter": {"rank": 4}},
]


@pytest.mark.parametrize(("name", "by"), sorted({case[:2] for case in EVERY}))
def test_layers_that_are_replayed_are_those_that_would_be_played(name: str, by: str) -> None:
    for part in PARTS:
        training = {"sequence_length": 64, "optimizer": name, "optimizer_implementation": by, **part}
        job = {"model": {**SMALL, "num_hidden_layers": 5}, "hardware": {"memory": "24GB"}, "training": training}
        assert_folded_as_unrolled(job)


def per_parameter(name: str, by: str, precision: str) -> str:
    """Bytes kept on the GPU, and the most of a step's temporaries, for 64 matrices of 4096 x 4096: both per parameter."""
    tape = Tape()
    tape.begin("load")
    dtype = BY_NAME["fp32" if precision == "32-true" else "bf16"]
    parameters = []
    for number in range(64):
        tensor = empty(tape, (4096, 4096), dtype)
        parameters.append(Parameter(f"{number}", tensor, tensor, None, tensor.numel, tensor.numel))
    settings = {"optimizer_rank": 128} if name == "galore-adamw" else {"optimizer_rank": 256} if name == "apollo" else {}
    training = job_of(name, by, precision, **settings).training
    asked = optimizer(training, frozenset(p.name for p in parameters), frozenset())
    tape.begin("states")
    states = asked.states(tape, parameters)
    tape.begin("optimizer_step")
    asked.step(tape, parameters)
    tape.finish()
    _, made, step = replay(tape).phases
    elements = sum(p.local.numel for p in parameters)
    del states
    return f"{(made.end_bytes - made.start_bytes) / elements:.2f} | {(step.peak_bytes - step.start_bytes) / elements:.2f}"


def table() -> list[str]:
    """The rows of the table in docs/techniques/optimizers.md."""
    return [
        f"| {name} | {by} | {per_parameter(name, by, 'bf16-true')} | {per_parameter(name, by, '32-true')} |"
        for name, kinds in IMPLEMENTATIONS.items()
        for by in kinds
    ]


def test_the_document_has_our_figures() -> None:
    text = (ROOT / "docs" / "techniques" / "optimizers.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in text
