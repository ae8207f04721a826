"""Tapes of training jobs, with slots that stand for many layers and with one for each layer."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Job
from estimator.contract.units import MIB
from estimator.families import layers
from estimator.parallel.topology import topology
from estimator.pipeline.defaults import with_defaults
from estimator.runtime.reserved import reserved
from estimator.simulation.trace import trace
from estimator.specs.resolve import resolve
from estimator.tape.peak import Place, locate_peak, tensors
from estimator.tape.replay import Replay, replay
from estimator.tape.slots import Slot, Stack
from estimator.tape.tape import Tape


def simulated(job: dict[str, Any], unrolled: bool = False) -> tuple[Tape, Replay]:
    """The tape of a job and what it says."""
    read = Job.model_validate(job)
    spec = resolve(read.model).spec
    read = with_defaults(read, spec)[0]
    tape = trace(read, spec, topology(read, spec), unrolled=unrolled).tape
    return tape, replay(tape)


def unrolled(job: dict[str, Any]) -> tuple[Tape, Replay]:
    """The same with every layer in a slot of its own, also in groups of layers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "runs", _alone)
        return simulated(job, unrolled=True)


WORKSPACE = 8 * MIB
SMALL = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4000,
}
"""A model whose layers are small, of as many as a test wants."""


def assert_folded_as_unrolled(job: dict[str, Any]) -> tuple[Tape, Tape]:
    """Layers that share a slot take what they take one by one, also in the caching allocator, and have their peaks in the
    same places; both tapes."""
    tape, folded = simulated(job)
    long_tape, long = unrolled(job)
    assert folded.phases == long.phases
    assert peaks(tape, folded) == peaks(long_tape, long)
    assert tensors(tape, folded.alive) == tensors(long_tape, long.alive)
    assert reserved(tape, WORKSPACE) == reserved(long_tape, WORKSPACE)
    return tape, long_tape


def peaks(tape: Tape, said: Replay) -> list[Place]:
    """Where each phase has its peak, after the model is loaded."""
    return [locate_peak(tape, at, said.blocks[at]) for at in range(1, len(said.phases))]


def _alone(
    stack: Stack, count: int, edges: layers.Edges, parent: Slot | None = None, start: int = 0, size: int = 1
) -> list[Slot]:
    return [layers.slot_of(stack, start + i * size, size, 1, parent) for i in range(count)]
