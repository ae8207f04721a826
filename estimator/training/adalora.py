"""AdaLoRA as PEFT applies it: B diag(E) A beside a frozen layer, and a loss that keeps A and B near orthogonal.

peft 0.21, tuners/adalora: layer.py, `SVDLinear`; model.py, `AdaLoraModel.forward`. A training loop changes the ranks by calling
`update_and_allocate`, if it wants to: the scores that this keeps, three numbers per trained one, are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from estimator.contract.errors import NotModelled
from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.families.sharding import Forward
from estimator.tape.autocast import cast_all
from estimator.tape.matmul import mm, times_transposed, transposed
from estimator.tape.pointwise import add_, add_scalar, add_to_view_, div, div_scalar, dropout, mul, mul_scalar, sub, to
from estimator.tape.reduction import vector_norm
from estimator.tape.slots import Slot
from estimator.tape.tensor import Tensor, empty
from estimator.training.methods import Method

HEADS_OF_PEFT = ("causal-lm", "seq2seq-lm", "sequence-classification")
"""Heads for which PEFT has a model of its own, by its `task_type`."""
NOT_COUNTED = "AdaLoRA: update_and_allocate, which changes the ranks, is taken to be never called; its scores are not counted"


@dataclass(frozen=True, slots=True)
class AdaLora(Method):
    """Matrices of a `rank` to begin with; `matrices`: those of every layer, with its slot.

    `regularises`: whether the loss asks anything. PEFT's model for a kind of task does; the one for any model calls the model
    that is adapted past `AdaLoraModel` (peft_model.py, `PeftModel.forward`).
    """

    rank: int
    dropout: float
    regularises: bool
    matrices: list[tuple[Slot | None, Tensor, Tensor]] = field(default_factory=list)

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        if self.regularises and not build.learns:
            layer = name.rpartition(".")[2]
            raise NotModelled(
                f"AdaLoRA's own loss reaches its matrices on {layer}, which the model's does not: not modelled yet; "
                f"write exclude: [{layer}], or lora",
                "training.adapter.targets",
            )
        down = build.parameter(name + ".lora_A", (self.rank, inputs), self.dtype, trainable=True)
        up = build.parameter(name + ".lora_B", (outputs, self.rank), self.dtype, trainable=True)
        values = build.parameter(name + ".lora_E", (self.rank, 1), self.dtype, trainable=True)
        ranks = build.parameter(name + ".ranknum", (1,), self.dtype, trainable=False)
        self.matrices.append((build.tape.slot, down, up))
        return _SvdLinear(module, down, values, up, ranks, self.dropout)

    def root(self, build: Builder, model: Forward) -> Forward:
        build.tape.remarks[NOT_COUNTED] = None
        if not self.regularises:
            return model

        def run(*inputs: Tensor) -> tuple[Tensor, Any]:
            loss, held = model(*inputs)
            with loss.tape.losing():
                return self._regularised(loss), held

        return run

    def _regularised(self, loss: Tensor) -> Tensor:
        """The loss with the mean distance of A A^T and B^T B from identities added to it."""
        tape, total = loss.tape, None
        for slot, down, up in self.matrices:
            tape.enter(slot)
            for matrix in (down, up):
                product = times_transposed(matrix, matrix) if matrix is down else mm(*cast_all(transposed(matrix), matrix))
                eye = empty(tape, product.shape, product.dtype, "empty_like")
                distance = vector_norm(sub(product, eye))
                total = add_scalar(distance) if total is None else add_(total, distance)
                del distance
        tape.enter(None)
        assert total is not None
        total = div_scalar(total)
        return add_(loss, mul_scalar(total))


class _SvdLinear:
    """base(x), and in place of it + dropout(x) (A * E)^T B^T * scale / rank."""

    def __init__(self, base: Module, lora_a: Tensor, lora_e: Tensor, lora_b: Tensor, ranks: Tensor, p: float):
        self.base, self.lora_a, self.lora_e, self.lora_b, self.ranks, self.p = base, lora_a, lora_e, lora_b, ranks, p

    def __call__(self, x: Tensor) -> Tensor:
        result = self.base(x)
        ranks = add_scalar(self.ranks)
        adapted = to(x, self.lora_a.dtype)
        change = div(mul_scalar(self._update(adapted)), ranks)
        biased = getattr(self.base, "bias", None) is not None  # then a product of all rows, seen as sequences (Linear.cpp)
        if not biased or not result.is_view:
            return add_(result, change)
        if result.tape.selection is not None:
            result.tape.selection.changes(result, "what layers with a bias give, to which AdaLoRA adds: write full, or lora")
        return add_to_view_(result, change)

    def _update(self, x: Tensor) -> Tensor:
        return times_transposed(times_transposed(dropout(x, self.p), mul(self.lora_a, self.lora_e)), self.lora_b)
