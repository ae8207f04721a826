"""What no way of running a job goes below, known without simulating it: bytes of each GPU, and seconds.

    bytes   = (weights + states) / ranks that share them + inputs of all layers
    seconds = seconds of a sequence's products and attention on one GPU · sequences / GPUs

None of the products is counted twice. Gathered weights, gradients and activations come on top of the bytes; kernels that only
move bytes, and what ranks exchange, on top of the seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from estimator.contract.errors import WillItFitError
from estimator.contract.job import Job, read_job
from estimator.families import count
from estimator.families.other import OtherSpec
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.hardware.accelerator import Accelerator
from estimator.parallel.strategies import STRATEGIES, Strategy
from estimator.pipeline.run import Run, played
from estimator.pipeline.step_time import arithmetic_seconds
from estimator.planner.levers import (
    ACTIVATIONS,
    CHECKPOINTS,
    CHOICES,
    CONTEXT,
    EXPERT,
    GRADIENTS,
    LEAST_WORK,
    MICRO,
    OPTIMIZER,
    PARAMETERS,
    PIPELINE,
    STEPS,
    STRATEGY,
    TENSOR,
    Extent,
    Settings,
)
from estimator.planner.numbers import with_values
from estimator.planner.ways import PACKED
from estimator.tape.dtypes import DType
from estimator.tape.kernels import kernels
from estimator.tape.tape import Tape
from estimator.timing.host import adam_seconds
from estimator.timing.kernels import BACKWARD, KERNELS
from estimator.training.overrides import parts
from estimator.training.recipes import recipe

ADAMW = ("adamw", "adam")
HALF = 2
"""Bytes of a number in the narrowest type that layers compute in."""
PLAIN = ("fused", "foreach", "forloop")
FAST = ("fp8", "int8", "fp4")
"""Types whose peaks count only where a job names them."""
ROUNDING = 1e-9
"""Relative; of sums of floating-point numbers in another order."""


def weight_bytes(job: Job, spec: ModelSpec, settings: Settings, extent: Extent) -> int:
    """Bytes of each GPU that weights take, and AdamW's states and the copy in float32, where all weights are trained."""
    training, strategy = job.training, STRATEGIES[settings[STRATEGY]]
    precision = settings.get("training.precision", training.precision)
    found = recipe(precision, strategy, training.implementation)
    other = isinstance(spec, OtherSpec) or (training.head, training.objective, training.dtypes) != (None, None, None)
    if other or found is None:
        return 0
    group = _group(strategy, settings, extent)
    shared = settings[TENSOR] * settings[PIPELINE] * settings[EXPERT]
    quantized = settings.get("training.quantization", training.quantization)
    weights = PACKED.get(quantized, 0.5) if quantized else float(found.weights.itemsize)
    if training.adapter is not None or training.trainable != "all":
        states = 0
    else:
        states = _states(job, settings, parts(found, strategy))
    whole = count(spec) / shared
    kept = 0.0 if settings[PARAMETERS] != "none" else weights / (group if strategy.gathers else 1)
    if settings[OPTIMIZER] == "none":
        kept += states / (group if strategy.gathers or strategy.stage else 1)
    return int(whole * kept)


def gradient_bytes(job: Job, spec: ModelSpec, settings: Settings, extent: Extent) -> int:
    """Bytes of each GPU that all gradients take when backward ends; 0 where that is not so, or ZeRO has them its way."""
    training, strategy = job.training, STRATEGIES[settings[STRATEGY]]
    found = recipe(settings.get("training.precision", training.precision), strategy, training.implementation)
    apart = settings[GRADIENTS] != "none" or settings[PARAMETERS] != "none" or strategy.stage
    at_once = settings.get("training.optimizer_in_backward", training.optimizer_in_backward)
    partly = training.adapter is not None or training.trainable != "all" or training.implementation == "megatron"
    other = isinstance(spec, OtherSpec) or (training.head, training.objective, training.dtypes) != (None, None, None)
    if apart or at_once or partly or other or found is None:
        return 0
    kept = found.weights.itemsize / (_group(strategy, settings, extent) if strategy.gathers else 1)
    return int(count(spec) / (settings[TENSOR] * settings[PIPELINE] * settings[EXPERT]) * kept)


def host_seconds(job: Job, spec: ModelSpec, settings: Settings, extent: Extent) -> float:
    """Seconds of a step, for each of its sequences, that AdamW takes in the host's memory; 0 where it does not work there."""
    training, strategy = job.training, STRATEGIES[settings[STRATEGY]]
    found = recipe(settings.get("training.precision", training.precision), strategy, training.implementation)
    partly = training.adapter is not None or training.trainable != "all" or isinstance(spec, OtherSpec)
    if settings[OPTIMIZER] == "none" or partly or found is None or (training.head, training.objective) != (None, None):
        return 0.0
    ranks = extent.total // (settings[TENSOR] * settings[PIPELINE])
    moments = 2 * min(4, found.weights.itemsize) if _states(job, settings, parts(found, strategy)) else 0
    each = 3 * found.weights.itemsize + 2 * moments
    whole = count(spec) / (settings[TENSOR] * settings[PIPELINE] * settings[EXPERT])
    node: float = extent.gpus * whole * each / _group(strategy, settings, extent)
    sequences: int = settings[MICRO] * settings[STEPS] * (ranks // settings[CONTEXT])
    return adam_seconds(strategy.stage, node) / sequences * (1 - ROUNDING)


def _group(strategy: Strategy, settings: Settings, extent: Extent) -> int:
    """Ranks that share what is divided among them, those of context with them."""
    group: int = extent.total // (settings[TENSOR] * settings[PIPELINE])
    return ceil(group / extent.nodes) if strategy.replicated else group


def saved_bytes(job: Job, spec: ModelSpec, settings: Settings, work: Settings) -> int:
    """Bytes of each GPU that layers' inputs take when forward ends: each is kept for backward, whether its layer is computed
    again or not. 0 where a part of the model is frozen, a rank does not have all layers, or inputs are not kept on the GPU."""
    training = job.training
    frozen = training.adapter is not None or training.trainable != "all" or training.objective is not None
    elsewhere = settings[PIPELINE] > 1 or work[ACTIVATIONS] != "none" or work[CHECKPOINTS] not in CHOICES[CHECKPOINTS]
    if frozen or elsewhere or not isinstance(spec, DecoderSpec):
        return 0
    length: int = min(settings.get("training.sequence_length", training.longest), spec.longest_sequence or training.longest)
    tokens: int = settings[MICRO] * (length // (settings[TENSOR] * settings[CONTEXT]))
    return (spec.depth - 1) * tokens * spec.hidden_size * HALF


def _states(job: Job, settings: Settings, kept: Mapping[str, DType | None]) -> int:
    """Bytes of states of each parameter: two moments, and the copy that they step."""
    training = job.training
    plain = training.optimizer_implementation in (None, *PLAIN) and training.optimizer_states is None
    if settings.get("training.optimizer", training.optimizer) not in ADAMW or not plain:
        return 0
    moments, copied = kept["optimizer_states"], kept["master_weights"]
    return (2 * moments.itemsize if moments else 0) + (copied.itemsize if copied else 0)


@dataclass(slots=True)
class Arithmetic:
    """Seconds of a sequence of a job on one GPU, by what changes them; remembered."""

    job: Job
    allow_files: bool
    known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def seconds(self, settings: Settings, extent: Extent, card: Accelerator | None) -> float:
        """Seconds of a sequence on all GPUs together that no way of running it goes below; 0 where that is not known.

        By the kernels of the model on one GPU, or on those that divide each layer: products and attention, what is computed again
        with them, are of the same sizes wherever all of a sequence and of a layer's part is on one GPU.
        """
        if any(settings[name] > 1 for name in (PIPELINE, CONTEXT, EXPERT)):
            return self.at_peak(settings, extent, card)
        if card is None:
            return 0.0
        apart = {name: value for name, value in settings.items() if name.startswith("training.")} | {STEPS: 1}
        if apart[CHECKPOINTS] not in CHOICES[CHECKPOINTS]:
            apart[CHECKPOINTS] = LEAST_WORK
        key = card.name, settings[TENSOR], *map(str, apart.values())
        if key not in self.known:
            run = self._alone(apart, card, settings[TENSOR])
            again = apart[CHECKPOINTS] != LEAST_WORK
            found = run and arithmetic_seconds(run.job, run.place, card, run.simulation.build.tape, again)
            self.known[key] = (found or 0.0) / settings[MICRO] * settings[TENSOR] * (1 - ROUNDING)
        return self.known[key] / extent.total

    def at_peak(self, settings: Settings, extent: Extent, card: Accelerator | None) -> float:
        """Less than `seconds`, and found with less: by the products alone, at the card's peak, whatever parts they are divided
        into."""
        if card is None or not (peak := self._peak(card)):
            return 0.0
        apart = {name: value for name, value in settings.items() if name.startswith("training.")}
        apart |= {CHECKPOINTS: LEAST_WORK, STEPS: 1, MICRO: 1}
        key = card.compute_capability, *map(str, apart.values())
        if key not in self.known:
            run = self._alone(apart, card)
            self.known[key] = 0.0 if run is None else _products(run.simulation.build.tape) * (1 - ROUNDING)
        return self.known[key] / peak / extent.total

    def _alone(self, apart: Settings, card: Accelerator, tensor: int = 1) -> Run | None:
        """The job on one GPU, or on as many as divide each layer, however large it is; None where that is refused."""
        asked = with_values(self.job, apart)
        for part in ("parallelism", "offload", "host"):
            asked.pop(part, None)
        if tensor > 1:
            asked["parallelism"] = {"tensor": tensor}
        try:
            return played(read_job(asked | {"hardware": {"gpu": card.name, "gpus": tensor}}), self.allow_files)
        except WillItFitError:
            return None

    def _peak(self, card: Accelerator) -> float:
        """FLOP/s of the quickest products that the job may run."""
        training = self.job.training
        quick = training.float8 or training.fp8 or training.quantization
        return max((fact.value * 1e12 for name, fact in card.peak.items() if quick or name not in FAST), default=0.0)


def _products(tape: Tape) -> float:
    """Floating-point operations of a micro-batch's matrix products, none of them done twice."""
    return sum(
        work.flops * times / tape.passes(phase)
        for phase in ("forward", "backward")
        for work, times in kernels(tape, phase)
        if not work.repeated and work.operation.removesuffix(BACKWARD) not in KERNELS
    )
