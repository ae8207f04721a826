"""What no way of running a job goes below, known without simulating it: bytes of each GPU, and seconds.

    bytes   = (weights + states) / ranks that share them
    seconds = arithmetic of the products of a sequence · sequences / (GPUs · peak)

The products are those of the model on one GPU, none of them computed twice. Gathered weights, gradients, activations, and all
that ranks exchange come on top.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Any

from estimator.contract.errors import WillItFitError
from estimator.contract.job import Job, read_job
from estimator.families import count
from estimator.families.other import OtherSpec
from estimator.families.spec import ModelSpec
from estimator.hardware.accelerator import Accelerator
from estimator.parallel.strategies import STRATEGIES
from estimator.pipeline.run import played
from estimator.planner.levers import (
    ACTIVATIONS,
    CHECKPOINTS,
    EXPERT,
    LEAST_WORK,
    OPTIMIZER,
    PARAMETERS,
    PIPELINE,
    STRATEGY,
    TENSOR,
    Extent,
    Settings,
)
from estimator.planner.numbers import with_values
from estimator.planner.ways import PACKED
from estimator.tape.kernels import kernels
from estimator.timing.kernels import BACKWARD, KERNELS
from estimator.training.overrides import parts
from estimator.training.recipes import recipe

ADAMW = ("adamw", "adam")
PLAIN = ("fused", "foreach", "forloop")
FAST = ("fp8", "int8", "fp4")
"""Types whose peaks count only where a job names them."""


def weight_bytes(job: Job, spec: ModelSpec, settings: Settings, extent: Extent) -> int:
    """Bytes of each GPU that weights take, and AdamW's states and the copy in float32, where all weights are trained."""
    training, strategy = job.training, STRATEGIES[settings[STRATEGY]]
    precision = settings.get("training.precision", training.precision)
    found = recipe(precision, strategy, training.implementation)
    other = isinstance(spec, OtherSpec) or (training.head, training.objective, training.dtypes) != (None, None, None)
    if other or found is None:
        return 0
    group = extent.total // (settings[TENSOR] * settings[PIPELINE])  # among them those of context
    if strategy.replicated:
        group = ceil(group / extent.nodes)
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


def _states(job: Job, settings: Settings, kept: dict[str, Any]) -> int:
    """Bytes of states of each parameter: two moments, and the copy that they step."""
    training = job.training
    plain = training.optimizer_implementation in (None, *PLAIN) and training.optimizer_states is None
    if settings.get("training.optimizer", training.optimizer) not in ADAMW or not plain:
        return 0
    copied = kept["master_weights"]
    return 2 * kept["optimizer_states"].itemsize + (copied.itemsize if copied else 0)


@dataclass(slots=True)
class Arithmetic:
    """Products of a sequence of a job, by settings that change them; remembered."""

    job: Job
    allow_files: bool
    known: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)

    def seconds(self, settings: Settings, extent: Extent, card: Accelerator | None) -> float:
        """Seconds of a sequence on all GPUs together that no way of running it goes below; 0 where that is not known."""
        peak = None if card is None else self._peak(card)
        return self.flops(settings) / (extent.total * peak) if peak else 0.0

    def flops(self, settings: Settings) -> float:
        """Floating-point operations of a sequence's products, none of them done twice."""
        apart = {name: value for name, value in settings.items() if name.startswith("training.")}
        apart |= {CHECKPOINTS: LEAST_WORK, "training.micro_batch_size": 1, "training.gradient_accumulation_steps": 1}
        key = tuple((name, str(value)) for name, value in apart.items())
        if key not in self.known:
            self.known[key] = self._counted(apart)
        return self.known[key]

    def _counted(self, apart: Settings) -> float:
        asked = with_values(self.job, apart)
        for part in ("hardware", "parallelism", "offload", "host"):
            asked.pop(part, None)
        try:
            run = played(read_job(asked), self.allow_files)
        except WillItFitError:
            return 0.0
        tape = run.simulation.build.tape
        return sum(
            work.flops * times / tape.passes(phase)
            for phase in ("forward", "backward")
            for work, times in kernels(tape, phase)
            if not work.repeated and work.operation.removesuffix(BACKWARD) not in KERNELS
        )

    def _peak(self, card: Accelerator) -> float:
        """FLOP/s of the quickest products that the job may run."""
        training = self.job.training
        quick = training.float8 or training.fp8 or training.quantization
        return max((fact.value * 1e12 for name, fact in card.peak.items() if quick or name not in FAST), default=0.0)
