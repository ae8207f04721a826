"""Loss scaling for float16: torch's `GradScaler` (torch/amp/grad_scaler.py), step by step.

A scale and a growth count live on the GPU. The loss is multiplied by the scale, gradients are divided by it in place, and whether
any of them was infinite is a number on the GPU, too. A step that is skipped allocates what one that is taken does, but for the
optimizer's own temporaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from estimator.contract.errors import Contradiction
from estimator.contract.job import Training
from estimator.families.parameter import Parameter
from estimator.tape import dtypes
from estimator.tape.collectives import Group
from estimator.tape.pointwise import mul
from estimator.tape.tape import OPTIMIZER_STATE, Tape
from estimator.tape.tensor import Tensor, empty, unary
from estimator.training.recipes import Recipe


class Scaler(Protocol):
    """What happens to the loss before backward, and to gradients around the optimizer's step."""

    def scale(self, loss: Tensor) -> Tensor:
        """The loss that backward starts from."""

    def unscale(self) -> None:
        """Bring gradients to their own size, ahead of the step."""

    def step(self, optimize: Callable[[], None]) -> None:
        """Run the optimizer's step, which is `optimize`."""

    def update(self) -> None:
        """Adjust the scale after the step."""


class Unscaled:
    """Training without a scale: loss and gradients stay as they are."""

    def __init__(self, tape: Tape):
        del tape

    def scale(self, loss: Tensor) -> Tensor:
        return loss

    def unscale(self) -> None:
        """Nothing: gradients were never scaled."""

    def step(self, optimize: Callable[[], None]) -> None:
        optimize()

    def update(self) -> None:
        """Nothing: there is no scale."""


class GradScaler:
    """`fused`: the optimizer divides by the scale itself, and is only told whether a gradient was infinite. `shards`: ranks
    that each have a part of DTensors, and ask each other (torch/distributed/tensor/_dispatch.py, `found_inf_reduce_handler`).
    """

    def __init__(self, tape: Tape, fused: bool, shards: int):
        self.tape = tape
        self.fused = fused
        self.group = Group("data", shards)
        with tape.counting(OPTIMIZER_STATE):
            self.factor = empty(tape, (), dtypes.float32, "scale")
            self.growth = empty(tape, (), dtypes.int32, "growth_tracker")
        self.found: Tensor | None = None
        """Whether a gradient was infinite: known from `unscale` to `update`."""

    def scale(self, loss: Tensor) -> Tensor:
        with self.tape.losing():
            return mul(loss, self.factor)

    def unscale(self) -> None:
        self._check(unary("to", unary("reciprocal", unary("to", self.factor, dtypes.float64)), dtypes.float32))

    def _check(self, inverse: Tensor) -> None:
        """`_unscale_grads_`: in place; copies of both numbers for the device, of which that of what was found is kept."""
        found = unary("full", self.factor)
        here = unary("to", found)
        inverse_here = unary("to", inverse)
        self.found = here
        if self.group.size > 1:
            summed = unary("all_reduce", here)
            self.tape.communicate("all_reduce", *self.group, here.nbytes)
            del summed
        del inverse_here, found

    def step(self, optimize: Callable[[], None]) -> None:
        """Fused: gradients are checked with an inverse of one, and the optimizer gets a scale and a sum of what was found."""
        if not self.fused:
            if self.found is None:
                self.unscale()
            optimize()
            return
        unscaled = self.found is not None
        if not unscaled:
            self._check(unary("full", self.factor))
        found = unary("add", self.factor)
        scaled = None if unscaled else unary("mul", self.factor)
        optimize()
        del scaled, found

    def update(self) -> None:
        self.found = None


class MegatronScaler:
    """Megatron's (optimizer/grad_scaler.py): a scale of one for bf16; for float16 its bound and its factors are tensors, too."""

    def __init__(self, tape: Tape, unscales: bool):
        self.unscales = unscales
        with tape.counting(OPTIMIZER_STATE):
            self.factor = empty(tape, (1,), dtypes.float32, "scale")
            names = ("min_scale", "growth_factor", "backoff_factor", "found_inf", "overflow_buf") if unscales else ()
            self.beside = [empty(tape, (1,), dtypes.float32, name) for name in names]

    def scale(self, loss: Tensor) -> Tensor:
        with self.factor.tape.losing():
            return mul(self.factor, loss)

    def unscale(self) -> None:
        """Nothing: the step itself brings gradients to their own size."""

    def step(self, optimize: Callable[[], None]) -> None:
        if self.unscales:
            unary("to", unary("reciprocal", unary("to", self.factor, dtypes.float64)), dtypes.float32)
        optimize()

    def update(self) -> None:
        """Nothing: the scale stays the same."""


def scaler(training: Training, precision: Recipe, parameters: Iterable[Parameter], shards: int = 1) -> Callable[[Tape], Scaler]:
    """The scaler of a job, whose parameters are DTensors in so many `shards`.

    Raises `InvalidJob` for gradients that none of torch's kernels unscales (AmpKernels.cu in 2.13), and where the part of this
    rank, the first, holds nothing that is trained: GradScaler takes no step without a gradient."""
    if precision.summed:
        return partial(MegatronScaler, unscales=precision.weights is dtypes.float16)
    if not precision.scaled:
        return Unscaled
    fused = training.optimizer_implementation == "fused"
    trained = [p for p in parameters if p.trainable]
    if not any(p.local.numel for p in trained):
        raise Contradiction(
            "GradScaler takes no step on a rank whose part holds nothing that is trained; write bf16-mixed, or train more",
            "training.precision",
        )
    halves = {p.local.dtype.name for p in trained} - {"float32"}
    if halves and (halves != {"float16"} or not fused or training.gradient_clipping):
        raise Contradiction(
            f"GradScaler does not unscale gradients in {' or '.join(sorted(halves))}; write dtype: fp32",
            "training.adapter.dtype" if training.adapter else "training.dtypes.weights",
        )
    return partial(GradScaler, fused=fused, shards=shards)
