"""LoRA on a parameter itself, as PEFT does it: W + scale * B A is made anew in each pass, a second tensor of W's size.

peft 0.21, tuners/lora/layer.py, `ParamWrapper`. torch's parametrization makes and drops it once to check it, then makes it when
it is first used, and keeps it until the module has run (torch/nn/utils/parametrize.py).
"""

from __future__ import annotations

from estimator.families.parameter import Weight
from estimator.tape.autocast import cast, paused
from estimator.tape.matmul import baddbmm, mm
from estimator.tape.pointwise import add, mul_scalar, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, transpose

COPIED = "LoRA on experts: in every pass PEFT makes a second tensor as large as a layer's experts; other targets avoid it"


class LoraExperts(Weight):
    """W + scale * B A for each expert (`_LoraFactorsProxy`)."""

    def __init__(self, tensor: Tensor, lora_a: Tensor, lora_b: Tensor):
        super().__init__(tensor)
        self.lora_a, self.lora_b = lora_a, lora_b
        self.factors: tuple[Tensor, Tensor] | None = None
        self.value: Tensor | None = None

    def enter(self) -> None:
        experts, outputs, inputs = self.tensor.shape
        a = reshape(self.lora_a, (experts, -1, inputs))
        b = transpose(transpose(reshape(self.lora_b, (outputs, -1, experts)), 0, 2), 1, 2)
        left = to(b, self.tensor.dtype)
        self.factors = left, to(a, self.tensor.dtype)
        self.tensor.tape.remarks[COPIED] = None
        self._made()

    def __call__(self) -> Tensor:
        if self.value is None:
            self.value = self._made()
        return self.value

    def leave(self) -> None:
        self.factors = self.value = None

    def _made(self) -> Tensor:
        assert self.factors is not None
        with paused(self.tensor.tape):
            return baddbmm(self.tensor, *self.factors)


class LoraMatrix(LoraExperts):
    """W + scale * B A for a single matrix; the product is made first (`_LoraParameterProxy`)."""

    def enter(self) -> None:
        delta = mul_scalar(_product(self.lora_b, self.lora_a))
        self.delta: Tensor | None = to(delta, self.tensor.dtype)
        del delta
        self._made()

    def leave(self) -> None:
        self.delta = self.value = None

    def _made(self) -> Tensor:
        assert self.delta is not None
        return add(self.tensor, self.delta)


def _product(a: Tensor, b: Tensor) -> Tensor:
    b = cast(b)
    return mm(cast(a), b)
