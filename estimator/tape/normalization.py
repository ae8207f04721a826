"""Normalisation kernels."""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, empty, moved, output, unary
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


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
    """torch's native group norm of [batch, channels, places] (group_norm.cpp, `native_group_norm`).

    Saves its arguments, and per group a mean and a reciprocal deviation in their type. Autocast casts its arguments to float32.
    What its kernels hold for each channel while they run is not counted.
    """
    inputs = [to(t, dtypes.float32) if x.tape.autocast else t for t in (x, weight, bias)]
    x = inputs[0]
    wanted = [(t.shape, t.requires_grad) for t in inputs]

    def backward(g: Tensor, x: Tensor, *_: Tensor) -> list[Gradient]:
        dense = contiguous(g)
        gradients = [empty(g.tape, shape, g.dtype, "native_group_norm_backward") if want else None for shape, want in wanted]
        moved("native_group_norm_backward", g, x, g)
        del dense
        return gradients

    node = record("NativeGroupNormBackward", inputs, (x, inputs[1]), backward)
    out = attach(node, unary("native_group_norm", x))
    statistics = tuple(empty(x.tape, (x.shape[0], groups), x.dtype, "native_group_norm") for _ in range(2))
    if node is not None:
        node.save(statistics)
    return out


def weight_norm(lengths: Tensor, directions: Tensor) -> Tensor:
    """A weight of its directions, and its lengths in the last dimension (`torch._weight_norm`, WeightNorm.cpp). Saves both, and
    the directions' own lengths, in float32 of half precision (cuda/WeightNorm.cu)."""
    wanted = directions.requires_grad, lengths.requires_grad

    def backward(g: Tensor, v: Tensor, lengths: Tensor, _: Tensor) -> tuple[Gradient, Gradient]:
        dense = contiguous(g)
        made = [output("_weight_norm_interface_backward", (dense,), t.shape, t.dtype) for t in (v, lengths)]
        del dense
        return (made[0] if wanted[0] else None), (made[1] if wanted[1] else None)

    node = record("WeightNormInterfaceBackward", (directions, lengths), (directions, lengths), backward)
    out = attach(node, unary("_weight_norm_interface", directions))
    own = empty(lengths.tape, lengths.shape, dtypes.float32, "_weight_norm_interface")
    if node is not None:
        node.save((own,))
    return out


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, running: tuple[Tensor, Tensor]) -> Tensor:
    """torch's batch norm of [batch, channels, places] while it is trained; x is contiguous.

    Saves x, its weight, the running statistics, which it writes into, and of each channel a mean and a reciprocal deviation in
    float32. With a weight in float32 cuDNN computes it, whose backward makes all three gradients, and whose reserve is empty
    where channels are not innermost (aten/src/ATen/native/Normalization.cpp, `_select_batch_norm_backend`; cudnn/BatchNorm.cpp;
    cuda/Normalization.cu). Autocast casts nothing.
    """
    arguments = [(t.shape, t.dtype, t.requires_grad) for t in (x, weight, bias)]
    by_cudnn = weight.dtype is dtypes.float32

    def backward(g: Tensor, x: Tensor, *_: Tensor) -> list[Gradient]:
        dense = contiguous(g)
        made: list[Gradient] = [
            empty(g.tape, shape, dtype, "native_batch_norm_backward") if by_cudnn or want else None
            for shape, dtype, want in arguments
        ]
        moved("native_batch_norm_backward", g, x, g)
        del dense
        return [gradient if want else None for gradient, (*_, want) in zip(made, arguments, strict=True)]

    node = record("NativeBatchNormBackward", (x, weight, bias), (x, weight, *running), backward)
    out = attach(node, unary("native_batch_norm", x))
    statistics = tuple(empty(x.tape, weight.shape, dtypes.float32, "native_batch_norm") for _ in range(2))
    if node is not None:
        node.save(statistics)
    return out
