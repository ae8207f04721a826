"""Squares of an image: their means, and what is in them, side by side; an image resized, or read at given places."""

from __future__ import annotations

from estimator.tape.autograd import attach, record
from estimator.tape.layout import channels_last, is_channels_last
from estimator.tape.tensor import Tensor, output
from estimator.tape.views import contiguous, select, unsqueeze


def avg_pool2d(x: Tensor, side: int) -> Tensor:
    """Means of the squares of `side` by `side` pixels of [images, channels, height, width], which is contiguous. Saves `x`; its
    gradient comes from one that is laid out likewise (aten/src/ATen/native/cuda/AveragePool2d.cu)."""
    images, channels, height, width = x.shape

    def backward(g: Tensor, x: Tensor) -> Tensor:
        dense = contiguous(g)
        out = output("avg_pool2d_backward", (dense,), x.shape, g.dtype)
        del dense
        return out

    node = record("AvgPool2DBackward", (x,), (x,), backward)
    return attach(node, output("avg_pool2d", (x,), (images, channels, height // side, width // side), x.dtype))


def avg_pool1d(x: Tensor, side: int) -> Tensor:
    """Means of `side` numbers of [rows, channels, length] each, as of an image of one row (aten/src/ATen/native/Pool1d.cpp). What
    comes with the channels innermost is read and given so, without a copy. Saves `x`."""
    rows, channels, length = x.shape
    shape, image = (rows, channels, 1, length // side), unsqueeze(x, 2)
    inner = is_channels_last(image.shape, image.element_strides())

    def backward(g: Tensor, x: Tensor) -> Tensor:
        dense = g if is_channels_last(g.shape, g.element_strides()) == inner else contiguous(g)
        out = output("avg_pool2d_backward", (dense,), x.shape, g.dtype, channels_last(x.shape) if inner else None)
        del dense
        return out

    node = record("AvgPool2DBackward", (image,), (image,), backward)
    pooled = attach(node, output("avg_pool2d", (image,), shape, x.dtype, channels_last(shape) if inner else None))
    return select(pooled, 2)


def unfold(x: Tensor, side: int) -> Tensor:
    """Squares of `side` by `side` numbers of [images, channels, height, width], as columns: [images, channels side², squares].

    Saves nothing. An image and a gradient that are laid out otherwise are copied first (aten/src/ATen/native/cuda/Im2Col.cu,
    Col2Im.cu).
    """
    images, channels, height, width = x.shape
    shape = (images, channels * side**2, (height // side) * (width // side))
    before = x.shape

    def backward(g: Tensor) -> Tensor:
        dense = contiguous(g)
        out = output("col2im", (dense,), before, g.dtype)
        del dense
        return out

    node = record("Im2ColBackward", (x,), (), backward)
    dense = contiguous(x.detach())
    out = output("im2col", (dense,), shape, x.dtype)
    del dense
    return attach(node, out)


def bilinear(x: Tensor, height: int, width: int) -> Tensor:
    """[images, channels, height, width] resized (`torch.nn.functional.interpolate`), in any layout. Saves nothing; its gradient
    comes from one that is contiguous (aten/src/ATen/native/cuda/UpSampleBilinear2d.cu)."""
    before = x.shape

    def backward(g: Tensor) -> Tensor:
        dense = contiguous(g)
        out = output("upsample_bilinear2d_backward", (dense,), before, g.dtype)
        del dense
        return out

    node = record("UpsampleBilinear2DBackward", (x,), (), backward)
    return attach(node, output("upsample_bilinear2d", (x,), (*before[:2], height, width), x.dtype))


def stretched(x: Tensor, height: int, width: int) -> Tensor:
    """The same with what is made smaller smoothed (`interpolate(antialias=True)`), laid out as `x` is: its kernel and that of its
    gradient copy what is not contiguous, for as long as they run (aten/src/ATen/native/cuda/UpSampleBilinear2d.cu).
    Saves nothing; its gradient is contiguous."""
    before, shape = x.shape, (*x.shape[:2], height, width)

    def backward(g: Tensor) -> Tensor:
        return output("_upsample_bilinear2d_aa_backward", (g,), before, g.dtype)

    node = record("UpsampleBilinear2DAaBackward", (x,), (), backward)
    inner = is_channels_last(x.shape, x.element_strides())
    return attach(node, output("_upsample_bilinear2d_aa", (x,), shape, x.dtype, channels_last(shape) if inner else None))


def grid_sample(x: Tensor, grid: Tensor) -> Tensor:
    """[images, channels, height, width] read at the places of a grid, [images, rows, columns, 2]
    (`torch.nn.functional.grid_sample` by bicubic interpolation). Saves both; a gradient of the grid is made whether it is wanted
    or not (aten/src/ATen/native/cuda/GridSampler.cpp)."""
    images, channels, *_ = x.shape

    def backward(g: Tensor, x: Tensor, grid: Tensor) -> Tensor:
        out = output("grid_sampler_2d_backward", (g,), x.shape, x.dtype)
        unread = output("grid_sampler_2d_backward", (g,), grid.shape, grid.dtype)
        del unread
        return out

    node = record("GridSampler2DBackward", (x,), (x, grid), backward)
    return attach(node, output("grid_sampler_2d", (x,), (images, channels, *grid.shape[1:3]), x.dtype))
