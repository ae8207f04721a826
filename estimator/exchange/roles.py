"""Runs of several models on the same GPUs, each sharded: of them `estimate` follows the one that learns, and what the others keep
there meanwhile is memory that others hold; so are adapters on what no linear layer has.

What they take while it is their turn (a generation, a pass that only scores) is not in the answer, as each reader says.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from pydantic import ValidationError

from estimator.contract.errors import WillItFitError
from estimator.contract.job import Hardware
from estimator.contract.units import gib
from estimator.exchange.configuration import Configuration
from estimator.exchange.found import with_field
from estimator.families import count, parameters
from estimator.families.other import OtherSpec
from estimator.hardware.capacity import capacity
from estimator.specs.resolve import resolve


def held(conf: Configuration, role: str, model: str | None, bytes_each: int, ranks: int, experts: int | None = None) -> None:
    """Count what another model keeps on each GPU: `bytes_each` for each of its parameters, divided by `ranks`, its experts' by
    `experts` where that is another number."""
    name = str(model or conf.get("model") or "")
    parameters = parameters_of(name, conf.around.allow_files)
    if parameters is None:
        conf.leave(role, f"how many parameters {name[:60]!r} has is not known: what it keeps on each GPU is not in the answer")
        return
    of_experts = experts_of(name, conf.around.allow_files) if experts is not None else 0
    found = -(-(parameters - of_experts) * bytes_each // max(1, ranks)) - (-of_experts * bytes_each // max(1, experts or 1))
    conf.put("hardware.in_use", (conf.get("hardware.in_use") or 0) + found)
    over = f"over {ranks} GPUs" + (f", experts over {experts}" if of_experts else "")
    conf.assume(
        role,
        gib(found),
        f"what it keeps on each GPU ({bytes_each} bytes a parameter, {over}), counted as memory that others hold",
    )


def engine_held(job: Mapping[str, Any], share: float) -> tuple[dict[str, Any], str]:
    """The job with what vLLM keeps of each of its GPUs while it is awake, and the sentence that says so."""
    said = f"vLLM beside it holds {share:.0%} of each GPU while the model is trained"
    hardware = dict(job.get("hardware") or {})
    try:
        memory = capacity(Hardware.model_validate({**hardware, "in_use": None})).memory_bytes
    except (ValidationError, WillItFitError):
        memory = None
    if memory is None:
        return dict(job), f"{said}, which is not in the answer, since no GPU is named"
    held = int(memory * share)
    found = with_field(job, "hardware.in_use", (hardware.get("in_use") or 0) + held)
    return found, f"{said}: {gib(held)}, counted as memory that others hold (hardware.in_use)"


def on_parameters(conf: Configuration, key: str = "lora_target_parameters") -> None:
    """Count LoRA's matrices on parameters that no linear layer has, such as a mixture's experts, with their gradients and states.

    PEFT 0.21, tuners/lora/layer.py (`ParamWrapper`): of n experts one pair of matrices, of n times the rank.
    """
    names, adapter = conf.names(key), conf.get("training.adapter") or {}
    if not names or not adapter:
        return
    strategy, rank = str(conf.get("parallelism.strategy") or "none"), int(adapter.get("rank") or 8)
    try:
        known = parameters(resolve(conf.get("model") or "", conf.around.allow_files).spec)
    except WillItFitError:
        known = []
    wanted = [one for one in known if any(f".{one.path}".endswith(f".{name}") for name in names)]
    numbers = sum(one.times * rank * prod(one.tensor.shape[:-2]) * sum(one.tensor.shape[-2:]) for one in wanted)
    if not numbers or strategy.startswith("zero"):
        conf.leave(key, f"{', '.join(names)[:60]}: parameters that are no linear layers get no adapter in the answer")
        return
    kept, optimizer = 2 if adapter.get("dtype") == "bf16" else 4, str(conf.get("training.optimizer"))
    moments = 0 if "sgd" in optimizer else 1 if "lion" in optimizer else 2
    states = moments * (1 if "8bit" in optimizer else kept)
    ranks = conf.gpus if strategy.startswith(("fsdp", "hsdp")) else 1
    found = -(-numbers * (2 * kept + states) // ranks)
    conf.put("hardware.in_use", (conf.get("hardware.in_use") or 0) + found)
    of_what = f"{numbers:,} of LoRA's numbers on {', '.join(names)[:60]}"
    conf.assume(key, gib(found), f"{of_what}: weights, gradients and states, counted as memory that others hold")
    conf.leave(key, "what the products of these adapters keep, and the weights that PEFT adds them to, are not in the answer")


def parameters_of(model: Any, allow_files: bool) -> int | None:
    """The parameters of a model that a job names; None where nothing here knows them."""
    try:
        found = resolve(model, allow_files)
    except WillItFitError:
        return None
    return found.parameters if isinstance(found.spec, OtherSpec) else count(found.spec)


def experts_of(model: Any, allow_files: bool) -> int:
    """The parameters of a model's experts, of which a token uses some; 0 of one that has none, or that nothing here knows."""
    try:
        return sum(one.count * one.times for one in parameters(resolve(model, allow_files).spec) if one.active != one.count)
    except WillItFitError:
        return 0


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
