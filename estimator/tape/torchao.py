"""Products with weights that torchao stores in eight bits: operations of torch, which autograd sees one by one.

torchao 0.18, quantization/quantize_/workflows: int8/int8_tensor.py (`linear`, weights alone, a scale per output) and
float8/float8_tensor.py (`_float8_addmm_impl`, of inputs that are not quantized). Where x wants a gradient, the weight in its type
is an operand like any other, and saved.
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.matmul import linear, mm
from estimator.tape.pointwise import add, add_, mul, to
from estimator.tape.tensor import Tensor, unary
from estimator.tape.views import reshape, transpose

SAVED = "torchao's weights are saved for backward in the model's type where layers are not recomputed"


def matmul_int8(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """x times codes [out, in] in the type of x, then times `scale` [out, 1]."""
    _remark(x)
    product = mm(reshape(x, (-1, x.shape[-1])), unary("_to_copy", transpose(codes, 0, 1), x.dtype))
    out = reshape(mul(product, reshape(to(scale, product.dtype), (-1,))), (*x.shape[:-1], codes.shape[0]))
    return out if bias is None else add_(out, bias)


def matmul_float8(x: Tensor, codes: Tensor, dtype: DType, bias: Tensor | None) -> Tensor:
    """x times a weight [out, in] that is made in `dtype` by way of two copies in float32."""
    _remark(x)
    out = linear(x, _widened(codes, dtype))
    return out if bias is None else add(out, bias)


def _remark(x: Tensor) -> None:
    tape = x.tape
    if x.requires_grad and tape.grad_enabled and tape.saved_tensor_hooks is None and not tape.recomputing:
        tape.remarks[SAVED] = None


def _widened(codes: Tensor, dtype: DType) -> Tensor:
    """quant_primitives.py, `_dequantize_affine_float8`."""
    numbers = unary("_to_copy", codes, dtypes.float32)
    scaled = unary("mul", numbers)
    return unary("_to_copy", scaled, dtype)
