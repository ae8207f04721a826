"""Tapes of training jobs, with slots that stand for many layers and with one for each layer."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Job
from estimator.families import layers
from estimator.parallel.topology import topology
from estimator.settle import settled
from estimator.specs.resolve import resolve
from estimator.tape.peak import Place, crest
from estimator.tape.replay import Replay, replay
from estimator.tape.tape import Slot, Stack, Tape
from estimator.training.plan import trace_training


def played(job: dict[str, Any], unrolled: bool = False) -> tuple[Tape, Replay]:
    """The tape of a job and what it says."""
    read = Job.model_validate(job)
    spec = resolve(read.model).spec
    read = settled(read, spec)
    tape = trace_training(read, spec, topology(read, spec), unrolled=unrolled).tape
    return tape, replay(tape)


def unrolled(job: dict[str, Any]) -> tuple[Tape, Replay]:
    """The same with every layer in a slot of its own, also in groups of layers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "runs", _alone)
        return played(job, unrolled=True)


def peaks(tape: Tape, said: Replay) -> list[Place]:
    """Where each phase has its peak, after the model is loaded."""
    return [crest(tape, at, said.blocks[at]) for at in range(1, len(said.phases))]


def _alone(
    stack: Stack, count: int, edges: layers.Edges, parent: Slot | None = None, start: int = 0, size: int = 1
) -> list[Slot]:
    return [layers.slot_of(stack, start + i * size, size, 1, parent) for i in range(count)]
