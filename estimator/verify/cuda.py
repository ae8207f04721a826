"""CUDA's decisions on a machine without it: which kernel runs, and what autocast casts.

Each decision has its source in torch 2.13; none of it concerns the memory of anything but the operation named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from peft.tuners import lora
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, Partial
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from transformers.integrations import eetq, finegrained_fp8

from estimator.tape.gpu import AMPERE, Gpu
from estimator.verify.attention import scaled_dot_product_attention
from estimator.verify.eetq import Kernels
from estimator.verify.fp8 import fp8_linear
from estimator.verify.live import Live

_softmax, _cross_entropy, _sum, _einsum = torch.Tensor.softmax, F.cross_entropy, torch.Tensor.sum, torch.einsum
_rms_norm, _log_softmax, _batch_norm = F.rms_norm, F.log_softmax, F.batch_norm
_is_autocast_enabled, _clear_autocast_cache = torch.is_autocast_enabled, torch.clear_autocast_cache
_linear = F.linear


@contextmanager
def on_cuda(gpu: Gpu = AMPERE) -> Iterator[None]:
    """Run torch's functions as they would run on this GPU.

    CUDA's autocast runs some operations in float32 that the CPU's leaves alone (autocast_mode.h, AT_FORALL_FP32 and
    AT_FORALL_FP32_SET_OPT_DTYPE): of those that the tested models call, `pow`, which `square` calls, `rsqrt`, `exp`, `expm1`,
    `softplus`, `layer_norm`, `group_norm`, `rms_norm`, `softmax`, `sum` and vectors' norms. Of `cross_entropy` it runs less in
    float32 than the CPU's does.
    The CPU's casts what `cat` joins to the widest type, which CUDA's leaves to the kernel. tests/tape/test_autocast.py asks
    CUDA's dispatch itself. Whether autocast is on at all, Python code asks of CUDA's.
    """
    casts: dict[Tensor, Tensor] = {}

    def forget_casts() -> None:
        casts.clear()
        _clear_autocast_cache()

    instead: dict[str, Any] = {
        "scaled_dot_product_attention": partial(scaled_dot_product_attention, gpu, casts),
        "dropout": dropout,
        "softmax": softmax,
        "log_softmax": log_softmax,
        "ctc_loss": ctc_loss,
        "batch_norm": batch_norm,
        "cross_entropy": cross_entropy,
        "linear": linear,
    }
    with (
        mock.patch.multiple(
            F,
            **instead,
            layer_norm=in_float32(F.layer_norm),
            group_norm=in_float32(F.group_norm),
            softplus=in_float32(F.softplus),
            rms_norm=in_float32(rms_norm),
        ),
        mock.patch.multiple(
            torch,
            pow=in_float32(torch.pow),
            square=in_float32(torch.square),
            rsqrt=in_float32(torch.rsqrt),
            exp=in_float32(torch.exp),
            expm1=in_float32(torch.expm1),
            cat=uncast(torch.cat),
            einsum=einsum,
            softmax=softmax,
            is_autocast_enabled=is_autocast_enabled,
            clear_autocast_cache=forget_casts,
            get_autocast_gpu_dtype=partial(torch.get_autocast_dtype, "cpu"),
        ),
        mock.patch.object(torch.Tensor, "sum", sum_in_float32),
        mock.patch.object(torch, "sum", sum_in_float32),
        mock.patch.object(torch.Tensor, "softmax", softmax),
        mock.patch.multiple(
            torch.linalg, norm=length_in_float32(torch.linalg.norm), vector_norm=length_in_float32(torch.linalg.vector_norm)
        ),
        mock.patch.object(lora.Linear, "get_delta_weight", delta_weight),
        mock.patch.object(eetq, "eetq_kernels_hub", Kernels, create=True),
        mock.patch.object(finegrained_fp8, "fp8_linear", fp8_linear),
    ):
        yield


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch's linear layer: a bias that is no part of the product is added to it in place, unless a tensor or a mode looks on,
    as the one that counts does (Linear.cpp, `isTensorSubclassLike`)."""
    modes = _get_current_dispatch_mode_stack()
    counting = [mode for mode in modes if isinstance(mode, Live)]
    others = [mode for mode in modes if not isinstance(mode, Live | FakeTensorMode)]
    if bias is None or others or not counting or x.dim() < 3 or x.is_contiguous() or isinstance(bias, DTensor):
        return _linear(x, weight, bias)
    counting[-1].adds_in_place = True
    try:
        return _linear(x, weight, bias)
    finally:
        counting[-1].adds_in_place = False


def is_autocast_enabled(device: str = "cpu") -> bool:
    """Without a device torch answers for CUDA, in whose place the CPU runs."""
    return _is_autocast_enabled(device)


def in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function with its tensors cast to float32 under autocast."""

    def run(*args: Any, **settings: Any) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            args = tuple(a.float() if isinstance(a, Tensor) else a for a in args)
            settings = {name: a.float() if isinstance(a, Tensor) else a for name, a in settings.items()}
        return function(*args, **settings)

    return run


def length_in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A norm whose result is float32 under autocast; its kernel reads the narrower type itself (ReduceOpsUtils.h)."""

    def run(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not torch.is_autocast_enabled("cpu") or kwargs.get("dtype") is not None:
            return function(x, *args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return function(x, *args, **{**kwargs, "dtype": torch.float32})

    return run


def delta_weight(layer: Any, adapter: str) -> Tensor:
    """PEFT's product of an adapter's matrices, which it makes in float32 on the CPU only."""
    product: Tensor = layer.lora_B[adapter].weight @ layer.lora_A[adapter].weight
    return product * layer.scaling[adapter]


def uncast(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function out of autocast's sight."""

    def run(*args: Any, **kwargs: Any) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return run


def sum_in_float32(x: Tensor, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    """`sum` with a result of float32 under autocast."""
    if dtype is None and x.is_floating_point() and torch.is_autocast_enabled("cpu"):
        dtype = torch.float32
    return _sum(x, *args, dtype=dtype, **kwargs)


def einsum(equation: str, *operands: Any) -> Tensor:
    """An einsum of operands that are cast before they are laid out; the CPU's autocast casts what it hands to the product.
    They may be one sequence, as torch's may."""
    if len(operands) == 1 and not isinstance(operands[0], Tensor):
        operands = tuple(operands[0])
    if torch.is_autocast_enabled("cpu"):
        operands = tuple(t.to(torch.get_autocast_dtype("cpu")) if t.dtype == torch.float32 else t for t in operands)
    return _einsum(equation, *operands)


def softmax(x: Tensor, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax in one kernel where float16 comes in and float32 is asked for (SoftMax.cpp, host_softmax)."""
    if dtype is None and torch.is_autocast_enabled("cpu"):
        dtype = torch.float32
    if x.dtype == torch.float16 and dtype == torch.float32:
        return torch._softmax(x, dim, True)
    return _softmax(x, dim, dtype=dtype)


def log_softmax(x: Tensor, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """Its logarithm, likewise."""
    if x.dtype == torch.float16 and dtype == torch.float32:
        return torch._log_softmax(x, dim, True)
    return _log_softmax(x, dim, dtype=dtype)


def ctc_loss(
    scores: Tensor,
    targets: Tensor,
    frames: Tensor,
    lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The loss with lengths that are numbers of the host, as those of tensors of numbers become (LossCTC.cpp, `ctc_loss`)."""
    batch = scores.shape[1]
    one = len(targets) // batch, scores.shape[0]
    each = torch._ctc_loss(scores, targets, [one[1]] * batch, [one[0]] * batch, blank, zero_infinity)[0]
    if zero_infinity:
        each = torch.where(each == torch.inf, torch.zeros((), dtype=each.dtype), each)
    if reduction == "mean":
        each = (each / torch.tensor([one[0]] * batch, dtype=each.dtype).clamp_min(1)).mean()
    return each.sum() if reduction == "sum" else each


def cross_entropy(x: Tensor, target: Tensor, *, label_smoothing: float = 0.0, **kwargs: Any) -> Tensor:
    """Under CUDA's autocast the log-softmax keeps the type of `x`, which LossNLL.cpp asks for; the loss runs in float32."""
    if not torch.is_autocast_enabled("cpu") or x.dtype == torch.float32 or label_smoothing:
        return _cross_entropy(x, target, label_smoothing=label_smoothing, **kwargs)
    with torch.autocast("cpu", enabled=False):
        logp = torch.log_softmax(x, 1 if x.dim() > 1 else 0)
        return F.nll_loss(logp.float(), target, **kwargs)


class FusedRmsNorm(torch.autograd.Function):
    """CUDA's kernel for `rms_norm`, which the CPU computes in several operations (layer_norm.cpp, `rms_norm_symint`).

    It keeps its arguments, and per row a reciprocal in float32 (cuda/layer_norm_kernel.cu).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        ctx.save_for_backward(x, weight, torch.empty((*x.shape[:-1], 1), dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        dense = gradients[0].contiguous()
        made = torch.empty_like(x), torch.empty_like(weight)
        del dense
        return made


def rms_norm(x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """The kernel, where there is a weight of the input's type. DTensor runs it on its parts, and each of them has a share of the
    weight's gradient (torch/distributed/tensor/_ops/_math_ops.py, `rms_norm_bwd_single_dim_strategy`)."""
    if weight is None or weight.dtype != x.dtype:
        return _rms_norm(x, shape, weight, eps)
    if isinstance(x, DTensor) and isinstance(weight, DTensor):
        shared = [Partial() if placement.is_shard() else placement for placement in x.placements]
        part = FusedRmsNorm.apply(x.to_local(), weight.to_local(grad_placements=shared))
        return DTensor.from_local(part, x.device_mesh, x.placements)
    normed: Tensor = FusedRmsNorm.apply(x, weight)
    return normed


class BatchNorm(torch.autograd.Function):
    """CUDA's kernels for `batch_norm` while it is trained: of each channel they keep a mean and a reciprocal deviation in
    float32, where the CPU's keep them in the type of the input. cuDNN's, which takes a weight in float32, makes all gradients
    (Normalization.cpp, `_select_batch_norm_backend`; cudnn/BatchNorm.cpp; cuda/Normalization.cu)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        kept = [torch.empty(len(weight), dtype=torch.float32) for _ in range(2)]
        ctx.save_for_backward(x, weight, mean, variance, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *_ = ctx.saved_tensors
        dense, wanted = gradients[0].contiguous(), ctx.needs_input_grad[:3]
        made = [
            torch.empty_like(t) if want or weight.dtype == torch.float32 else None
            for t, want in zip((x, weight, weight), wanted, strict=True)
        ]
        del dense
        return *[gradient if want else None for gradient, want in zip(made, wanted, strict=True)], None, None


def batch_norm(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, training: bool, *rest: Any) -> Tensor:
    """The kernels, of a model that is trained."""
    if not training:
        return _batch_norm(x, mean, variance, weight, bias, training, *rest)
    normed: Tensor = BatchNorm.apply(x, weight, bias, mean, variance)
    return normed


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """CUDA's fused dropout, which keeps a mask of one byte per element (Dropout.cpp, is_fused_kernel_acceptable)."""
    return torch.native_dropout(x, p, True)[0] if training and p else x
