"""Convolutions over one or two dimensions, with their FLOPs.

What cuDNN and CUDA's depthwise kernels hold: nothing but input and weight. They take dense tensors, so that a tensor of
another layout is copied first, in forward and again in backward (aten/src/ATen/native/Convolution.cpp,
cudnn/ConvShared.cpp). Workspaces inside the kernels are not counted.
"""

from __future__ import annotations

from math import prod

from estimator.tape.autocast import cast_all
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.selective import made
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int = 1, padding: int = 0) -> Tensor:
    """`x` [batch, in, *sizes] with `weight` [out, in / groups, *kernel]; the bias is added in place.

    Saves input and weight, also where only one of the gradients is wanted (derivatives.yaml has one formula for both).
    """
    inputs = cast_all(x, weight) if bias is None else cast_all(x, weight, bias)
    source, kernel = inputs[:2]  # the caller holds `x` to the end
    wanted = [t.requires_grad for t in inputs]
    places = [(size + 2 * padding - k) // stride + 1 for size, k in zip(x.shape[2:], weight.shape[2:], strict=True)]
    shape = (x.shape[0], weight.shape[0], *places)
    sizes = x.shape[0] * prod(places), weight.shape[0], weight.numel // weight.shape[0]

    moved = x.numel + weight.numel + prod(shape)

    def computed(like: Tensor) -> None:
        """The product that a convolution is, of inputs that are read once."""
        like.tape.compute("convolution", 2 * prod(sizes), moved * like.dtype.itemsize, ((1, *sizes), like.dtype))

    def backward(g: Tensor, x: Tensor, weight: Tensor) -> list[Gradient]:
        tape = g.tape
        dense, dense_g = contiguous(x), contiguous(g)
        gradients: list[Gradient] = []
        for of, want in zip((x, weight), wanted, strict=False):
            if want:
                computed(g)
            gradients.append(empty(tape, of.shape, g.dtype, "convolution_backward") if want else None)
        del dense_g
        if len(wanted) > 2:
            gradients.append(empty(tape, weight.shape[:1], g.dtype, "convolution_backward") if wanted[2] else None)
        del dense
        return gradients

    node = record("ConvolutionBackward", inputs, (source, kernel), backward)

    def make() -> Tensor:
        computed(source)
        dense = contiguous(source.detach())
        out = empty(x.tape, shape, source.dtype, "convolution")
        del dense
        return out

    return attach(node, made(x.tape, "convolution", make))
