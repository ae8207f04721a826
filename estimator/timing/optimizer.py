"""How many bytes an optimizer's step reads and writes: each tensor once, or as often as optimizer.yaml says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from estimator.contract.job import Training
from estimator.facts import catalogue
from estimator.families.parameter import Parameter
from estimator.tape.tape import OPTIMIZER_STATE, Tape

FILE = Path(__file__).parent / "optimizer.yaml"


def optimizer_bytes(training: Training, parameters: Iterable[Parameter], tape: Tape) -> float:
    """Gradients are read, parameters and states read and written; several times by what works operation by operation."""
    known, by = catalogue.shipped(FILE), training.optimizer_implementation
    done, once = (1, 1) if by in known["once"] else known.get(by, {}).get(training.optimizer, known["uncounted"])
    return done / once * moved_bytes(parameters, tape)


def moved_bytes(parameters: Iterable[Parameter], tape: Tape) -> int:
    """Bytes that a step moves if each tensor is read or written once; states are those on the tape."""
    held = sum(p.local.nbytes * p.times for p in parameters if p.trainable)
    return 3 * held + 2 * _states(tape)


def _states(tape: Tape) -> int:
    """Bytes of the optimizer's states on the tape, all layers counted."""
    before = tape.phases[1].start
    return sum(
        tape.sizes[event] * (slot.total if (slot := tape.slots[event]) else 1)
        for event in tape.events[:before]
        if event > 0 and tape.components[event] == OPTIMIZER_STATE
    )
