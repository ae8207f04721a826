"""Normalisation kernels."""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, empty, moved, unary
from estimator.tape.views import contiguous


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """torch's native layer norm over the last dimension.

    Saves its arguments, and per row a mean and a reciprocal deviation in float32. The kernels work on copies of what is not
    contiguous. Autocast casts its arguments to float32.
    """
    inputs = [t for t in (x, weight, bias) if t is not None]
    if x.tape.autocast:
        inputs = [to(t, dtypes.float32) for t in inputs]
    x = inputs[0]
    wanted = [(t.shape, t.requires_grad) for t in inputs]

    def backward(g: Tensor, x: Tensor, *_: Tensor) -> list[Gradient]:
        dense = contiguous(g), contiguous(x)
        gradients = [empty(g.tape, shape, g.dtype, "native_layer_norm_backward") if want else None for shape, want in wanted]
        moved("native_layer_norm_backward", g, x, g)
        del dense
        return gradients

    node = record("NativeLayerNormBackward", inputs, tuple(inputs), backward)
    dense = contiguous(x.detach())
    out = attach(node, unary("native_layer_norm", dense))
    rows = (*x.shape[:-1], 1)
    statistics = tuple(empty(x.tape, rows, dtypes.float32, "native_layer_norm") for _ in range(2))
    del dense
    if node is not None:
        node.save(statistics)
    return out


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """torch's fused RMS norm over the last dimension, of one type (layer_norm.cpp, `rms_norm_symint`; cuda/layer_norm_kernel.cu).

    Saves its arguments, and per row a reciprocal in float32. The kernels work on copies of what is not contiguous. Autocast casts
    its arguments to float32.
    """
    if x.tape.autocast:
        x, weight = to(x, dtypes.float32), to(weight, dtypes.float32)
    wanted = x.requires_grad, weight.requires_grad

    def backward(g: Tensor, x: Tensor, weight: Tensor, _: Tensor) -> list[Gradient]:
        dense = contiguous(g)
        pairs = zip((x, weight), wanted, strict=True)
        gradients = [empty(g.tape, t.shape, t.dtype, "_fused_rms_norm_backward") if want else None for t, want in pairs]
        moved("_fused_rms_norm_backward", dense, x, x)
        return [*gradients]

    node = record("FusedRmsNormBackward", (x, weight), (x, weight), backward)
    dense = contiguous(x.detach())
    out = attach(node, unary("_fused_rms_norm", dense))
    del dense
    reciprocals = empty(x.tape, (*x.shape[:-1], 1), dtypes.float32, "_fused_rms_norm")
    if node is not None:
        node.save((reciprocals,))
    return out
