"""What was measured on an accelerator: the parameters of the equations in estimator.timing.curves, one YAML file per card.

They were fitted by tests/fit_efficiency.py to published measurements; docs/efficiency.md says on what, and how far off they are.
"""

from __future__ import annotations

import re
from datetime import date
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from estimator.contract.errors import NotModelled
from estimator.contract.reading import load_yaml
from estimator.contract.validation import validated
from estimator.facts import catalogue
from estimator.facts.fact import FittedTo, MeasuredFact
from estimator.hardware.accelerator import FOLDER as ACCELERATORS
from estimator.hardware.accelerator import Accelerator, accelerator

FOLDER = Path(__file__).parent / "curves"
SHARED = Path(__file__).parent / "shared.yaml"

Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
Direction = Literal["forward", "backward"]


class Strict(BaseModel):
    """Unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Spread(Strict):
    """How far measurements lie from the curve that it was not fitted to. `median` and `p90`: of |predicted / measured - 1|.
    `factor`: the tenth and the ninetieth percentile of measured / predicted, to multiply a time with."""

    rows: int
    median: float
    p90: float
    factor: tuple[float, float]


class Sourced(Strict):
    """Where the parameters come from, and what they were fitted to."""

    source: str
    as_of: date
    note: str = ""
    fitted_to: FittedTo


class Matmul(Sourced):
    """Parameters of `matmul_seconds` for one dtype."""

    launch_us: float
    share: float
    bandwidth_share: float
    sharpness: float
    prologue: float
    step_ns: float
    wave_share: float
    quantize_bytes: float
    sustained: MeasuredFact
    spread: Spread
    training_spread: Spread


class Head(Strict):
    """Parameters of `attention_seconds` for one head size: share of peak of an endless sequence, and the length at which half of
    it is reached, with a causal mask and without."""

    size: int
    causal_share: float
    causal_half: float
    full_share: float
    full_half: float


class Attention(Sourced):
    """Parameters of `attention_seconds` for one kernel, dtype and direction; head sizes in rising order. `range`: what a time may
    be multiplied with."""

    launch_us: float
    heads: list[Head]
    range: tuple[float, float]


class Stream(Sourced):
    """Time of moving bytes: launch, and share of the memory's bandwidth that long transfers reach."""

    launch_us: float
    share: float
    range: tuple[float, float]

    @property
    def factor(self) -> tuple[float, float]:
        """What a time may be multiplied with: the fastest and the slowest share."""
        return self.share / self.range[1], self.share / self.range[0]


class Collective(Sourced):
    """Parameters of `collective_seconds` for one kind, by number of ranks: latency, bus bandwidth as a share of the link, and
    what grows with the root of the payload."""

    ranks: dict[int, tuple[float, float, float]]
    spread: Spread


class Experts(Sourced):
    """Parameters of `experts_seconds` for one engine's kernels and one type of weights."""

    launch_us: float
    each_us: float
    share: float
    bandwidth_share: float
    sharpness: float
    tile: float
    passes: float
    sizes: dict[str, float] = {}
    """What kernels of so many experts, of a width and a hidden size, take for each second of the curve, where tuned for these."""
    spread: Spread


class Curves(Strict):
    """All that was measured on a card. `borrowed_from`: the card whose measurements these are, if they are not its own;
    `widen`: by what factors its times may then be wider."""

    name: str
    multiprocessors: int
    link: float
    matmul: dict[str, Matmul]
    attention: dict[str, dict[str, dict[Direction, Attention]]]
    """By kernel, dtype and direction."""
    memory: Stream
    decode: Stream
    collectives: dict[Kind, Collective]
    experts: dict[str, dict[str, Experts]] = {}
    """By engine and type of weights."""
    borrowed_from: str | None = None
    widen: tuple[float, float] = (1.0, 1.0)

    @property
    def attention_range(self) -> tuple[float, float]:
        """What a time of attention may be multiplied with, by the first of its kernels."""
        kinds = next(iter(self.attention.values()))
        return next(iter(kinds.values()))["forward"].range


class Borrowing(Strict):
    """Cards without measurements: those whose name matches take the curves of another."""

    names: str
    capability: str
    curves: str
    widen: tuple[float, float]
    why: str


class UnderLoad(MeasuredFact):
    """How much longer products take in a training run than in their benchmark, on cards whose names match."""

    names: str


class Reading(MeasuredFact):
    """GB/s that one multiprocessor reads of a matrix times few vectors, or of the cache, on cards whose names match.

    `kind`: a type of products, `packed` for weights that are unpacked on the way, or `cache`.
    """

    names: str
    kind: str


class SlowKernels(MeasuredFact):
    """How much longer some kernels take to move their bytes than plain ones."""

    operations: list[str]


class Shared(Strict):
    """What no card of its own has: nodes, hosts, and who borrows from whom."""

    network_share: MeasuredFact
    network_hop_us: MeasuredFact
    link_share: MeasuredFact
    host_pinned: MeasuredFact
    host_pageable: MeasuredFact
    triton_attention: MeasuredFact
    unknown_network: MeasuredFact
    """GB/s of a whole node to others, where no node of such cards is known."""
    unknown_link: MeasuredFact
    """GB/s between cards of whose board nothing is known."""
    unknown_collective_us: MeasuredFact
    """Microseconds that a collective takes at least, between cards that nothing like was measured of."""
    fastest_pcie: MeasuredFact
    """What is no faster is no NVLink of a server."""
    under_load: list[UnderLoad]
    slow_kernels: list[SlowKernels]
    reading: list[Reading]
    pcie: str
    """Whose collectives were measured over PCIe."""
    borrowing: list[Borrowing]


@cache
def shared() -> Shared:
    """The facts that hold for every card."""
    return Shared.model_validate(load_yaml(SHARED))


@cache
def slower(operation: str) -> float:
    """Seconds that a kernel takes to move its bytes for each that a plain one takes."""
    return next((fact.value for fact in shared().slow_kernels if operation in fact.operations), 1.0)


def under_load(name: str) -> UnderLoad | None:
    """How much longer products take under load on the card of this name; None where its clock is not known to sink."""
    return next((fact for fact in shared().under_load if re.fullmatch(fact.names, name)), None)


def reading(card: Accelerator) -> dict[str, Reading]:
    """What a card's multiprocessors read, by kind; nothing of cards whose bandwidth binds first."""
    return {fact.kind: fact for fact in shared().reading if re.fullmatch(fact.names, card.name)}


@cache
def curves(name: str) -> Curves:
    """The curves of an accelerator, by name or alias: its own, or those of the nearest one that was measured.

    Raises `UnknownName` for an unknown card, `NotModelled` for one that nothing like was measured.
    """
    card = accelerator(name)
    if card.name in catalogue.names(FOLDER):
        return load(card.name)
    rule = _lender(card)
    if rule is None:
        raise NotModelled(f"nothing like {card.name} was measured: there are no curves for its architecture, {card.architecture}")
    return load(rule.curves).model_copy(update={"name": card.name, "borrowed_from": rule.curves, "widen": rule.widen})


def borrowed() -> dict[str, Borrowing]:
    """Every accelerator of the catalogue that has no measurements of its own, and whose it takes."""
    cards = [accelerator(name) for name in catalogue.names(ACCELERATORS) if name not in catalogue.names(FOLDER)]
    return {card.name: rule for card in cards if (rule := _lender(card))}


def _lender(card: Accelerator) -> Borrowing | None:
    """The first rule that a card meets."""
    for rule in shared().borrowing if card.vendor == "nvidia" else ():
        if re.fullmatch(rule.names, card.name) and re.fullmatch(rule.capability, card.compute_capability or ""):
            return rule
    return None


@cache
def load(name: str) -> Curves:
    """The file of a card that was measured."""
    path = FOLDER / f"{name}.yaml"
    return validated(Curves, load_yaml(path), str(path))


def pcie() -> Curves:
    """The curves whose collectives were measured over PCIe."""
    return load(shared().pcie)
