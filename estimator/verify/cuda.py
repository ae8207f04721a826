"""CUDA's decisions on a machine without it: which kernel runs, and what autocast casts.

Each decision has its source in torch 2.13; none of it concerns the memory of anything but the operation named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from peft.tuners import lora
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
LARGEST_HEAD = 256  # sdp_utils.cpp, check_head_dim_size_flash
MASK_ALIGNMENT = 8  # attention.cpp, preprocess_mask and pad_bias: memory-efficient attention pads a mask's rows
_softmax, _cross_entropy, _sum, _einsum = F.softmax, F.cross_entropy, torch.Tensor.sum, torch.einsum
_is_autocast_enabled = torch.is_autocast_enabled


@contextmanager
def on_cuda() -> Iterator[None]:
    """Run torch's functions as they would run on CUDA.

    CUDA's autocast runs some operations in float32 that the CPU's leaves alone (autocast_mode.h, AT_FORALL_FP32 and
    AT_FORALL_FP32_SET_OPT_DTYPE): of those that the tested models call, `pow`, which `square` calls, `rsqrt`, `exp`, `softplus`,
    `layer_norm`, `softmax` and `sum`. Of `cross_entropy` it runs less in float32 than the CPU's does. The CPU's casts what `cat`
    joins to the widest type, which CUDA's leaves to the kernel. tests/test_autocast.py asks CUDA's dispatch itself. Whether
    autocast is on at all, Python code asks of CUDA's.
    """
    instead: dict[str, Any] = {
        "scaled_dot_product_attention": attention,
        "dropout": dropout,
        "softmax": softmax,
        "cross_entropy": cross_entropy,
    }
    with (
        mock.patch.multiple(F, **instead, layer_norm=in_float32(F.layer_norm), softplus=in_float32(F.softplus)),
        mock.patch.multiple(
            torch,
            pow=in_float32(torch.pow),
            square=in_float32(torch.square),
            rsqrt=in_float32(torch.rsqrt),
            exp=in_float32(torch.exp),
            cat=uncast(torch.cat),
            einsum=einsum,
            is_autocast_enabled=is_autocast_enabled,
        ),
        mock.patch.object(torch.Tensor, "sum", sum_in_float32),
        mock.patch.object(lora.Linear, "get_delta_weight", delta_weight),
    ):
        yield


def is_autocast_enabled(device: str = "cpu") -> bool:
    """Without a device torch answers for CUDA, whose part the CPU plays."""
    return _is_autocast_enabled(device)


def in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function with its tensors cast to float32 under autocast."""

    def run(*args: Any, **settings: Any) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            args = tuple(a.float() if isinstance(a, Tensor) else a for a in args)
            settings = {name: a.float() if isinstance(a, Tensor) else a for name, a in settings.items()}
        return function(*args, **settings)

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


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """An einsum of operands that are cast before they are laid out; the CPU's autocast casts what it hands to the product."""
    if torch.is_autocast_enabled("cpu"):
        operands = tuple(t.to(torch.get_autocast_dtype("cpu")) if t.dtype == torch.float32 else t for t in operands)
    return _einsum(equation, *operands)


def softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax in one kernel where float16 comes in and float32 is asked for (SoftMax.cpp, host_softmax)."""
    if dtype is None and torch.is_autocast_enabled("cpu"):
        dtype = torch.float32
    if x.dtype == torch.float16 and dtype == torch.float32:
        return torch._softmax(x, dim, True)
    return _softmax(x, dim=dim, dtype=dtype)


def cross_entropy(x: Tensor, target: Tensor, *, label_smoothing: float = 0.0, **kwargs: Any) -> Tensor:
    """Under CUDA's autocast the log-softmax keeps the type of `x`, which LossNLL.cpp asks for; the loss runs in float32."""
    if not torch.is_autocast_enabled("cpu") or x.dtype == torch.float32 or label_smoothing:
        return _cross_entropy(x, target, label_smoothing=label_smoothing, **kwargs)
    with torch.autocast("cpu", enabled=False):
        logp = torch.log_softmax(x, 1 if x.dim() > 1 else 0)
        return F.nll_loss(logp.float(), target, **kwargs)


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

    Flash takes half precision without a mask and heads of one size (sdp_utils.cpp, check_head_dim_size_flash); grouped heads
    run in flash and math only (the function's docstring), and fewer key heads without `enable_gqa` in math only
    (sdp_utils_cpp.h, check_batch_size_and_num_heads_dense). CUDA's autocast casts the arguments, the last one first; a mask of
    booleans becomes numbers of the query's type (aten/src/ATen/native/transformers/attention.cpp, convert_boolean_attn_mask).
    """
    if torch.is_autocast_enabled("cpu"):
        half = torch.get_autocast_dtype("cpu")
        if attn_mask is not None and attn_mask.dtype == torch.float32:
            attn_mask = attn_mask.to(half)
        v, k, q = (t.to(half) if t.dtype == torch.float32 else t for t in (v, k, q))
        with torch.autocast("cpu", enabled=False):
            return attention(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    size, scale = q.shape[-1], scale or q.shape[-1] ** -0.5
    same = k.shape[1] == q.shape[1]
    if q.dtype in HALF and attn_mask is None and size == v.shape[-1] <= LARGEST_HEAD and (same or enable_gqa):
        if size % 8:
            q, k, v = (F.pad(t, (0, 8 - size % 8)) for t in (q, k, v))
        out = torch.ops.aten._scaled_dot_product_flash_attention.default(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :size]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=q.dtype))
    if not same:
        if dropout_p:
            return _math_with_dropout(q, k, v, dropout_p, is_causal, scale)
        return torch.ops.aten._scaled_dot_product_attention_math.default(
            q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    if attn_mask is not None:
        attn_mask = aligned(attn_mask).expand(*q.shape[:3], k.shape[2])
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    return torch.ops.aten._scaled_dot_product_efficient_attention.default(
        q, k, v, attn_mask, wanted, dropout_p, is_causal, scale=scale
    )[0]


def aligned(mask: Tensor) -> Tensor:
    """A mask with rows of whole 8 numbers, for the memory-efficient kernel (attention.cpp, preprocess_mask)."""
    if mask.stride(-1) == 1 and not any(stride % MASK_ALIGNMENT for stride in mask.stride()[:-1]):
        return mask
    length = mask.shape[-1]
    return F.pad(mask, (0, MASK_ALIGNMENT - length % MASK_ALIGNMENT))[..., :length]


def _math_with_dropout(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, is_causal: bool, scale: float) -> Tensor:
    """What the math kernel runs, with CUDA's dropout (attention.cpp, _scaled_dot_product_attention_math)."""
    root, shared = math.sqrt(scale), q.shape[1] // k.shape[1]
    scaled = q * root
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() if is_causal else None
    if mask is not None:
        mask = torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=q.dtype))
    keys, values = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    weights = scaled @ (keys.transpose(2, 3) * root)
    if mask is not None:
        weights.add_(mask)
    weights = torch._safe_softmax(weights, -1)
    weights = dropout(weights, dropout_p)
    return weights @ values


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """CUDA's fused dropout, which keeps a mask of one byte per element (Dropout.cpp, is_fused_kernel_acceptable)."""
    return torch.native_dropout(x, p, True)[0] if training and p else x


def workspaces(func: Any, args: Any) -> list[Tensor]:
    """What CUDA's attention kernels hold while they compute gradients, beside these.

    Flash: flash_attn/flash_api.cpp, `mha_bwd`. Memory-efficient: attention_backward.cu, `_efficient_attention_backward`, and
    kernel_backward.h, `workspace_size`, for heads of up to 128 on compute capability 8.0 and above.
    """
    if func is aten._scaled_dot_product_flash_attention_backward.default:
        q, k = args[1:3]
        batch, heads, tokens, size = q.shape
        rows, columns = tokens + -tokens % 128, size + -size % (32 if size <= 128 else 64)
        shared = [torch.empty(batch, k.shape[2], heads, size, dtype=q.dtype) for _ in range(2)] if k.shape[1] != heads else []
        return [*_by_token(args[0], args[4]), _float32(batch, heads, rows), _float32(batch, rows, heads, columns), *shared]
    if func is aten._scaled_dot_product_efficient_attention_backward.default:
        q = args[1]
        batch, heads, tokens, size = q.shape
        if q.dtype == torch.float32:  # grad * out, then its sum over the head: the product is gone when the kernel runs
            return [*_by_token(args[0]), _float32(batch, tokens, heads, size), _float32(batch, tokens, heads)]
        block = 64 if size <= 64 else 128
        tiles = -(-tokens // block) * -(-size // 64)
        return [*_by_token(args[0]), _float32(batch, heads, tokens), _float32(batch, heads, tiles * (block * 64 + 4))]
    return []


def _by_token(*tensors: Tensor) -> list[Tensor]:
    """Copies of those that are not laid out as [batch, tokens, heads, size], for which `contiguous()` is asked of them."""
    return [torch.empty_like(t) for t in tensors if not t.transpose(1, 2).is_contiguous()]


def _float32(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32)
