"""What the peak is made of: where each phase reaches its highest, and the tensors that are alive at the highest of all."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.contract.answer import Peak, Place, Tensors
from estimator.tape.peak import TensorGroup, locate_peak, tensors
from estimator.tape.replay import Replay
from estimator.tape.tape import Tape

LARGEST = 10
"""Kinds of tensors that are named one by one."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """`at_peak`: bytes by component, which sum to the peak. `phase_peaks`: of phases of one name, the highest's place."""

    at_peak: dict[str, int]
    phase_peaks: dict[str, Place]
    peak: Peak


def attribution(tape: Tape, simulated: Replay) -> Attribution:
    """Read off a tape and its replay."""
    alive = [(kind, count, count * kind.each_bytes) for kind, count in tensors(tape, simulated.alive).items()]
    alive.sort(key=lambda kind: -kind[2])
    at_peak: dict[str, int] = {}
    for kind, _, size in alive:
        at_peak[kind.component] = at_peak.get(kind.component, 0) + size
    highest: dict[str, int] = {}
    for at, phase in enumerate(simulated.phases):
        if phase.name not in highest or phase.peak_bytes > simulated.phases[highest[phase.name]].peak_bytes:
            highest[phase.name] = at
    places = {name: locate_peak(tape, at, simulated.blocks[at])._asdict() for name, at in highest.items()}
    peak = Peak(
        phase=simulated.peak.name,
        **places[simulated.peak.name],
        tensors=[_alike(*row) for row in alive[:LARGEST]],
        rest_count=sum(count for _, count, _ in alive[LARGEST:]),
        rest_bytes=sum(size for _, _, size in alive[LARGEST:]),
    )
    return Attribution(
        {name: size for name, size in at_peak.items() if size},
        {name: Place(**place) for name, place in places.items() if name != "load"},
        peak,
    )


def _alike(kind: TensorGroup, count: int, size: int) -> Tensors:
    shape, dtype = kind.form or (None, None)
    return Tensors(
        component=kind.component,
        operation=kind.operation,
        part=kind.part,
        shape=None if shape is None else list(shape),
        dtype=None if dtype is None else dtype.name,
        count=count,
        each_bytes=kind.each_bytes,
        bytes=size,
    )
