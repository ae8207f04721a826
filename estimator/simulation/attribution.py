"""What the peak is made of: where each phase reaches its highest, and the tensors that are alive at the highest of all."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.contract.answer import Peak, Place, Tensors
from estimator.tape.peak import OUTSIDE, TensorGroup, locate_peak, tensors
from estimator.tape.replay import Replay
from estimator.tape.tape import Tape

SOMEWHERE = "the model"
"""Where a peak is of which only the operation is known."""
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


def somewhere(found: Attribution) -> Attribution:
    """The same of a tape on which no event is said to be of a layer."""
    unknown = {"part": SOMEWHERE}
    places = {
        name: place.model_copy(update=unknown) if place.part == OUTSIDE else place for name, place in found.phase_peaks.items()
    }
    peak = found.peak.model_copy(update=unknown) if found.peak.part == OUTSIDE else found.peak
    return Attribution(found.at_peak, places, peak)


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
