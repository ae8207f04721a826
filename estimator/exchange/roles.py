"""Runs of several models on the same GPUs, each sharded: of them `estimate` follows the one that learns, and what the others keep
there meanwhile is memory that others hold.

What they take while it is their turn (a generation, a pass that only scores) is not in the answer, as each reader says.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from estimator.contract.errors import WillItFitError
from estimator.contract.units import gib
from estimator.exchange.configuration import Configuration
from estimator.families import count
from estimator.families.other import OtherSpec
from estimator.specs.resolve import resolve


def held(conf: Configuration, role: str, model: str | None, bytes_each: int, ranks: int) -> None:
    """Count what another model keeps on each GPU: `bytes_each` for each of its parameters, divided by `ranks`."""
    name = str(model or conf.get("model") or "")
    parameters = parameters_of(name, conf.around.allow_files)
    if parameters is None:
        conf.leave(role, f"how many parameters {name[:60]!r} has is not known: what it keeps on each GPU is not in the answer")
        return
    found = -(-parameters * bytes_each // max(1, ranks))
    conf.put("hardware.in_use", (conf.get("hardware.in_use") or 0) + found)
    conf.assume(
        role,
        gib(found),
        f"what it keeps on each GPU ({bytes_each} bytes a parameter, over {ranks} GPUs), counted as memory that others hold",
    )


def parameters_of(model: Any, allow_files: bool) -> int | None:
    """The parameters of a model that a job names; None where nothing here knows them."""
    try:
        found = resolve(model, allow_files)
    except WillItFitError:
        return None
    return found.parameters if isinstance(found.spec, OtherSpec) else count(found.spec)


class Kind(NamedTuple):
    """What a reader asks about a model that a job names: its type, whether it is a mixture of experts, and its linear layers on
    which no LoRA works."""

    name: str = ""
    has_experts: bool = False
    without_lora: tuple[str, ...] = ()


def kind(model: Any, allow_files: bool) -> Kind:
    """Of a model that a job names; without a name of one not known here."""
    try:
        spec = resolve(model, allow_files).spec
    except WillItFitError:
        return Kind()
    inner = getattr(spec, "alone", spec)
    return Kind(inner.model_type, inner.has_experts, inner.without_lora)


def has_experts(model: Any, allow_files: bool) -> bool:
    """Whether a model that a job names is a mixture of experts; False where nothing here knows it."""
    return kind(model, allow_files).has_experts
