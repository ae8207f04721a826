"""DoRA as PEFT applies it: each output of W + scale * B A is scaled to a trained length (peft 0.21, tuners/lora/dora.py).

The sum's lengths are computed anew in each pass, from the whole product B A, which is made of an identity matrix as wide as the
layer's input. They are no part of the graph; but the base layer's result and the update are saved for the length's gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.contract.errors import NotModelled
from estimator.families.build import Builder
from estimator.families.modules import Conv1D, Embedding, Linear, Module
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, add_scalar, div, dropout, mul, mul_scalar, sub, to
from estimator.tape.reduction import vector_norm
from estimator.tape.tensor import Tensor, alias, empty
from estimator.tape.views import clone, reshape, transpose
from estimator.training.methods import Method, dense
from estimator.training.quantization import Dequantizes


@dataclass(frozen=True, slots=True)
class Dora(Method):
    """Matrices of a `rank`, and a length for each output."""

    rank: int
    dropout: float

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        down = build.parameter(name + ".lora_A.weight", (self.rank, inputs), self.dtype, trainable=True)
        up = build.parameter(name + ".lora_B.weight", (outputs, self.rank), self.dtype, trainable=True)
        length = build.parameter(name + ".lora_magnitude_vector.weight", (outputs,), self.dtype, trainable=True)
        return _DoraLinear(module, Linear(down, None), Linear(up, None), length, self)

    def embed(self, build: Builder, name: str, module: Embedding, rows: int, size: int) -> Module:
        raise NotModelled(f"DoRA on the embedding {name} is not modelled yet; lora is", "training.adapter.targets")


class _DoraLinear:
    """tuners/lora/layer.py and bnb.py, `forward`; variants.py, `DoraLinearVariant`."""

    def __init__(self, base: Module, lora_a: Linear, lora_b: Linear, magnitude: Tensor, config: Dora):
        self.base, self.lora_a, self.lora_b, self.magnitude, self.config = base, lora_a, lora_b, magnitude, config
        self.bias = base.bias if isinstance(base, Dequantizes) else dense(base).bias
        self.quantization = config.quantization if isinstance(base, Dequantizes) else None

    def __call__(self, x: Tensor) -> Tensor:
        result = self.base(x)
        dtype, quantization = result.dtype, self.quantization
        if quantization is not None and quantization != "int8":
            result = clone(result)
        if quantization is not None and x.tape.autocast:
            return self._variant(x, result)
        adapted = to(x, self.lora_a.weight.dtype)
        return to(self._variant(adapted, result), dtype)

    def _variant(self, x: Tensor, result: Tensor) -> Tensor:
        if not self.config.dropout:
            return add(result, self._change(x, result))
        dropped = dropout(x, self.config.dropout)
        return add(result, self._change(dropped, None))

    def _change(self, x: Tensor, base_result: Tensor | None) -> Tensor:
        """What is added to the base layer's result; without that, which is so after dropout, the product is computed again."""
        lora_weight = self._lora_weight()
        lora_weight = to(lora_weight, x.dtype)
        weight = self.base.dequantized() if isinstance(self.base, Dequantizes) else dense(self.base).weight
        weight = to(weight, x.dtype)
        norm = self._norm(weight, lora_weight.detach())
        norm = norm.detach()
        scale = reshape(div(self.magnitude, norm), (1, -1))
        lora_result = self.lora_b(self.lora_a(x))
        if base_result is None:
            base_result = linear(x, self._upright(weight))
        elif self.bias is not None:
            base_result = sub(base_result, self.bias)
        return add(mul(add_scalar(scale), base_result), mul_scalar(mul(scale, lora_result)))

    def _lora_weight(self) -> Tensor:
        """B A, [out, in]."""
        down = self.lora_a.weight
        eye = empty(down.tape, (down.shape[1], down.shape[1]), down.dtype, "eye")
        return transpose(self.lora_b(self.lora_a(eye)), 0, 1)

    def _norm(self, weight: Tensor, lora_weight: Tensor) -> Tensor:
        """The length of each row of the sum."""
        total = self._upright(weight)
        total = add(total, mul_scalar(lora_weight))
        return to(vector_norm(total, 1), total.dtype)

    def _upright(self, weight: Tensor) -> Tensor:
        """[out, in]. PEFT makes a new parameter of a `Conv1D`'s, which then wants a gradient (utils/other.py, `transpose`)."""
        if not isinstance(self.base, Conv1D):
            return weight
        turned = alias(weight, weight.shape[::-1], (1, weight.shape[1]))
        turned.requires_grad = weight is self.base.weight
        return turned
