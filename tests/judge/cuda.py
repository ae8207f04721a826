"""CUDA's decisions on a machine without it: which kernel runs, and what autocast casts.

Each decision has its source in torch 2.13; none of it concerns the memory of anything but the operation named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

HALF = (torch.float16, torch.bfloat16)
LARGEST_HEAD = 256  # sdp_utils.cpp, check_head_dim_size_flash
_softmax = F.softmax


@contextmanager
def on_cuda() -> Iterator[None]:
    """Run torch's functions as they would run on CUDA.

    CUDA's autocast runs some operations in float32 that the CPU's leaves alone (autocast_mode.h, AT_FORALL_FP32 and
    AT_FORALL_FP32_SET_OPT_DTYPE): of those that the tested models call, `pow`, `rsqrt`, `layer_norm` and `softmax`.
    tests/test_autocast.py asks CUDA's dispatch itself.
    """
    instead: dict[str, Any] = {"scaled_dot_product_attention": attention, "dropout": dropout, "softmax": softmax}
    with (
        mock.patch.multiple(F, **instead, layer_norm=in_float32(F.layer_norm)),
        mock.patch.multiple(torch, pow=in_float32(torch.pow), rsqrt=in_float32(torch.rsqrt)),
    ):
        yield


def in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function with its tensors cast to float32 under autocast."""

    def run(*args: Any) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            args = tuple(a.float() if isinstance(a, Tensor) else a for a in args)
        return function(*args)

    return run


def softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax in one kernel where float16 comes in and float32 is asked for (SoftMax.cpp, host_softmax)."""
    if dtype is None and torch.is_autocast_enabled("cpu"):
        dtype = torch.float32
    if x.dtype == torch.float16 and dtype == torch.float32:
        return torch._softmax(x, dim, True)
    return _softmax(x, dim=dim, dtype=dtype)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` with the kernel that CUDA prefers: flash, memory-efficient, math.

    Flash takes half precision without a mask; grouped heads run in flash and math only (the function's docstring).
    CUDA's autocast casts the arguments; a mask of booleans becomes numbers of the query's type
    (aten/src/ATen/native/transformers/attention.cpp, convert_boolean_attn_mask).
    """
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (t.to(torch.get_autocast_dtype("cpu")) if t.dtype == torch.float32 else t for t in (q, k, v))
    size, scale = q.shape[-1], scale or q.shape[-1] ** -0.5
    if q.dtype in HALF and attn_mask is None and size <= LARGEST_HEAD:
        if size % 8:
            q, k, v = (F.pad(t, (0, 8 - size % 8)) for t in (q, k, v))
        out = torch.ops.aten._scaled_dot_product_flash_attention.default(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :size]
    if enable_gqa and k.shape[1] != q.shape[1]:
        return torch.ops.aten._scaled_dot_product_attention_math.default(
            q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=True
        )[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=q.dtype))
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    return torch.ops.aten._scaled_dot_product_efficient_attention.default(
        q, k, v, attn_mask, wanted, dropout_p, is_causal, scale=scale
    )[0]


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """CUDA's fused dropout, which keeps a mask of one byte per element (Dropout.cpp, is_fused_kernel_acceptable)."""
    return torch.native_dropout(x, p, True)[0] if training and p else x
