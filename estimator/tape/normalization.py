"""Normalisation kernels."""

from __future__ import annotations

from estimator import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, empty


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """torch's native layer norm over the last dimension.

    Saves x, and per row a mean and a reciprocal deviation in float32. Autocast casts its arguments to float32.
    """
    inputs = [x, weight] if bias is None else [x, weight, bias]
    if x.tape.autocast:
        inputs = [to(t, dtypes.float32) for t in inputs]
    x, weight = inputs[:2]
    wanted = [t.requires_grad for t in inputs]

    def backward(g: Tensor, x: Tensor, weight: Tensor, *_: Tensor) -> list[Gradient]:
        shapes = (x.shape, weight.shape, weight.shape)
        return [
            empty(g.tape, shape, g.dtype, "native_layer_norm_backward") if want else None
            for shape, want in zip(shapes, wanted, strict=False)
        ]

    node = record("NativeLayerNormBackward", inputs, (x, weight), backward)
    out = attach(node, empty(x.tape, x.shape, x.dtype, "native_layer_norm"))
    rows = (*x.shape[:-1], 1)
    statistics = tuple(empty(x.tape, rows, dtypes.float32, "native_layer_norm") for _ in range(2))
    if node is not None:
        node.save(statistics)
    return out
