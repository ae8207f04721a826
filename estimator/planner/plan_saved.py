"""What each sequence of a micro-batch keeps on a GPU when forward ends, found once for all that share a model's weights alike.

    bytes(m) ≥ m · (bytes(1 + 512) − bytes(1)) / 512

What is as large whatever the micro-batch, weights and gradients, falls out; sizes that grow with it grow by x bytes a sequence,
and the allocator's step, of 512 bytes, divides 512·x, so that rounding falls out, too. How many ranks share weights changes no
activation: two GPUs for each part of a layer, or one, stand for any number of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from estimator.contract.errors import WillItFitError
from estimator.contract.job import Job, read_job
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.parallel.strategies import NONE, STRATEGIES, Strategy
from estimator.pipeline.run import played
from estimator.planner.levers import CONTEXT, EXPERT, MICRO, PIPELINE, STEPS, STRATEGY, TENSOR, Settings
from estimator.planner.numbers import with_values
from estimator.tape.tape import ALLOCATION_STEP
from estimator.training.recipes import recipe

FORWARD = "forward"
LIKE = (NONE.name, "zero1", "fsdp2")
"""Strategies of which one stands for all whose arithmetic is in the same types."""


@dataclass(slots=True)
class Saved:
    """Bytes that each sequence keeps, by what changes them; remembered."""

    job: Job
    spec: ModelSpec
    allow_files: bool
    known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def sequence_bytes(self, settings: Settings, card: Capacity) -> int:
        """Bytes of a GPU that each sequence of a micro-batch keeps until backward, at least; 0 where that is not known."""
        apart = any(settings[name] > 1 for name in (PIPELINE, CONTEXT, EXPERT)) or getattr(self.spec, "num_experts", None)
        strategy = None if apart or not isinstance(self.spec, DecoderSpec) else self._like(settings)
        if strategy is None:
            return 0
        asked = {name: value for name, value in settings.items() if name.startswith("training.") or name == "offload.activations"}
        asked |= {STRATEGY: strategy, STEPS: 1, TENSOR: settings[TENSOR]}
        gpus = settings[TENSOR] * (1 if strategy == NONE.name else 2)
        key = card.compute_capability, gpus, *(str(value) for name, value in asked.items() if name != MICRO)
        if key not in self.known:
            self.known[key] = self._found(asked, card, gpus)
        return self.known[key]

    def _like(self, settings: Settings) -> str | None:
        """A strategy that computes in the same types as that of these settings."""
        training, own = self.job.training, STRATEGIES[settings[STRATEGY]]
        precision = settings.get("training.precision", training.precision)

        def types(strategy: Strategy) -> object:
            return recipe(precision, strategy, training.implementation)

        if settings[TENSOR] > 1:
            return own.name if own.alone or own.name == "fsdp2" else "fsdp2" if own.name == "hsdp" else None
        return next((name for name in LIKE if types(own) is not None and types(STRATEGIES[name]) == types(own)), None)

    def _found(self, asked: Settings, card: Capacity, gpus: int) -> int:
        few, many = (self._end_bytes({**asked, MICRO: micro}, card, gpus) for micro in (1, 1 + ALLOCATION_STEP))
        return 0 if few is None or many is None else max(0, many - few) // ALLOCATION_STEP

    def _end_bytes(self, asked: Settings, card: Capacity, gpus: int) -> int | None:
        """What is alive when forward ends; None where that is refused."""
        given = with_values(self.job, {})
        for part in ("parallelism", "offload", "host"):
            given.pop(part, None)
        hardware = {"gpu": card.accelerator.name} if card.accelerator else {"memory": self.job.hardware.memory}
        try:
            job = read_job(with_values(read_job(given | {"hardware": {**hardware, "gpus": gpus}}), asked))
            phases = played(job, self.allow_files).simulation.phases.phases
        except WillItFitError:
            return None
        return next((one.end_bytes for one in phases if one.name == FORWARD), None)
