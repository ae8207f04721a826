"""Normalisation kernels."""

from __future__ import annotations

from estimator import dtypes
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
