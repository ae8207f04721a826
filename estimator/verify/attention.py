"""CUDA's `scaled_dot_product_attention` on a machine without it: the kernel that a GPU takes, and what that holds meanwhile.

Sources, all in torch 2.13's aten/src/ATen/native/transformers: cuda/sdp_utils.cpp (sdp), attention.cpp, cuda/attention.cu,
cuda/attention_backward.cu and cuda/mem_eff_attention.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._meta_registrations import alloc_with_matching_layout
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import _CachingTorchDispatchMode

from estimator.contract.errors import NotModelled
from estimator.tape.gpu import Gpu

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
KERNELS = {
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_efficient_attention_backward.default,
    aten._scaled_dot_product_flash_attention_backward.default,
    aten._scaled_dot_product_cudnn_attention_backward.default,
}
"""Those that hold something while they run (`workspaces`)."""


def scaled_dot_product_attention(
    gpu: Gpu,
    casts: dict[Tensor, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The function with the kernel that comes first in sdp's `select_sdp_backend`.

    CUDA's autocast casts the arguments, the last one first, and keeps the cast of a mask that is a leaf and wants a gradient in
    `casts` (autocast_mode.cpp, `cached_cast`); a mask of booleans becomes numbers of the query's type (attention.cpp,
    convert_boolean_attn_mask).
    """
    if torch.is_autocast_enabled("cpu"):
        half = torch.get_autocast_dtype("cpu")
        if attn_mask is not None and attn_mask.dtype == torch.float32:
            cast = casts[attn_mask] if attn_mask in casts else attn_mask.to(half)
            if attn_mask.requires_grad and attn_mask.is_leaf:
                casts[attn_mask] = cast
            attn_mask = cast
            del cast
        v, k, q = (t.to(half) if t.dtype == torch.float32 else t for t in (v, k, q))
        with torch.autocast("cpu", enabled=False):
            return scaled_dot_product_attention(gpu, casts, q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    size, scale = q.shape[-1], scale or q.shape[-1] ** -0.5
    kernel = kernel_of(gpu, q, k, v, attn_mask, dropout_p, enable_gqa)
    if kernel == "flash":
        if size % 8:
            q, k, v = (F.pad(t, (0, 8 - size % 8)) for t in (q, k, v))
        out = aten._scaled_dot_product_flash_attention.default(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :size]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=q.dtype))
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    if kernel == "cudnn":
        if not wanted:  # the function of fake tensors would make the log-sum-exp, which nobody asks for
            if any(isinstance(mode, _CachingTorchDispatchMode) for mode in _get_current_dispatch_mode_stack()):
                raise NotModelled(
                    "cuDNN's attention in a layer without gradients is no operation on tensors without data, which a selective "
                    "checkpoint could keep: write full, or a GPU without it, such as a100-80gb",
                    "training.activation_checkpointing",
                )
            seed, offset = (torch.empty((), dtype=torch.int64, device=q.device) for _ in range(2))
            out = alloc_with_matching_layout(q, (*q.shape[:3], v.shape[3]))
            del seed, offset  # of random numbers: cuda/attention.cu, _cudnn_attention_forward
            return out
        return aten._scaled_dot_product_cudnn_attention.default(
            q, k, v, attn_mask, True, dropout_p, is_causal, False, scale=scale
        )[0]
    if kernel == "math":
        if dropout_p:
            return _math_with_dropout(q, k, v, attn_mask, dropout_p, is_causal, scale)
        return aten._scaled_dot_product_attention_math.default(
            q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    if attn_mask is not None:
        attn_mask = aligned(attn_mask).expand(*q.shape[:3], k.shape[2])
    return aten._scaled_dot_product_efficient_attention.default(q, k, v, attn_mask, wanted, dropout_p, is_causal, scale=scale)[0]


def kernel_of(gpu: Gpu, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, enable_gqa: bool) -> str:
    """cudnn, flash, efficient or math: sdp's checks of each, in its order; math takes everything."""
    major, minor = gpu.capability
    d_qk, d_v, half = q.shape[-1], v.shape[-1], q.dtype in HALF
    same = q.shape[1] == k.shape[1] == v.shape[1]
    heads = same or enable_gqa  # check_batch_size_and_num_heads_dense
    learned = mask is not None and mask.requires_grad
    limit = 192 if (d_qk, d_v) == (192, 128) else 128  # check_cudnn_tensor_shapes, for cuDNN 9.20
    fits = max(d_qk, d_v) <= limit and d_qk % 8 == d_v % 8 == 0 and k.shape[2] != 1
    if gpu.prefers_cudnn and heads and half and not learned and fits and (dropout_p * 16) % 1 == 0:  # check_cudnn_dropout
        return "cudnn"
    # check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120
    narrow = (major == 8 and minor >= 6) or major == 12
    wide = narrow and q.requires_grad and d_qk > 192 and (d_qk <= 224 or dropout_p > 0)
    if heads and half and major >= 8 and mask is None and d_qk == d_v <= 256 and not wide:
        return "flash"
    alignment = (8 if half else 4) if major >= 8 else 8 if major == 7 and half else 1  # minimum_gemm_alignment
    known = q.dtype in (torch.float32, torch.float16) or major >= 8
    allowed = torch.backends.cuda.mem_efficient_sdp_enabled()
    return "efficient" if allowed and same and known and d_qk % alignment == d_v % alignment == 0 else "math"


def aligned(mask: Tensor) -> Tensor:
    """A mask with rows of whole 8 numbers, for the memory-efficient kernel (attention.cpp, preprocess_mask and pad_bias)."""
    if mask.stride(-1) == 1 and not any(stride % 8 for stride in mask.stride()[:-1]):
        return mask
    length = mask.shape[-1]
    return F.pad(mask, (0, 8 - length % 8))[..., :length]


def _math_with_dropout(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, scale: float
) -> Tensor:
    """What the math kernel runs, with CUDA's dropout (attention.cpp, _scaled_dot_product_attention_math)."""
    root, shared, dtype = math.sqrt(scale), q.shape[1] // k.shape[1], q.dtype
    q, k, v = q.float(), k.float(), v.float()
    scaled = q * root
    if is_causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        mask = torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=q.dtype))
    keys, values = (k, v) if shared == 1 else (k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1))
    weights = scaled @ (keys.transpose(2, 3) * root)
    if mask is not None:
        weights = weights + mask  # as where a dispatch mode is active (`areAnyTensorSubclassLike`)
    weights = torch._safe_softmax(weights, -1)
    weights = torch.native_dropout(weights, dropout_p, True)[0]
    returned = weights.to(dtype)  # which the operation returns with the result
    out = (weights @ values).to(dtype)
    del returned
    return out


def workspaces(capability: tuple[int, int], func: Any, args: Any) -> list[Tensor]:
    """What CUDA's attention kernels hold while they run, in addition to their results, which they make first.

    Memory-efficient forward: sums of wide heads in float32. Of the gradients, flash: flash_attn/flash_api.cpp, `mha_bwd`;
    cuDNN: cudnn_frontend's `get_fe_workspace_size_node`, and, inferred, what its plan needs where key heads are shared;
    memory-efficient: attention_backward.cu, `_efficient_attention_backward`.
    """
    if func is aten._scaled_dot_product_efficient_attention.default:
        q, _, v = args[:3]
        sums = q.dtype in HALF and max(q.shape[3], v.shape[3]) > 128  # kernel_forward.h, kNeedsOutputAccumulatorBuffer
        return [_float32(*q.shape[:3], v.shape[3])] if sums else []
    if func is aten._scaled_dot_product_flash_attention_backward.default:
        batch, heads, tokens, size = args[1].shape
        rows, columns = tokens + -tokens % 128, size + -size % (32 if size <= 128 else 64)
        held = [*_by_token(args[0], args[4]), _float32(batch, heads, rows), _float32(batch, rows, heads, columns)]
        return held + _for_every_query(*args[1:4])
    if func is aten._scaled_dot_product_cudnn_attention_backward.default:
        batch, heads, tokens, size = args[1].shape
        return [_float32(batch, heads, tokens, size + 1), *_for_every_query(*args[1:4])]
    if func is aten._scaled_dot_product_efficient_attention_backward.default:
        return [*_by_token(args[0]), *_of_efficient(capability, *args[1:4])]
    return []


def _for_every_query(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Gradients of keys and values for each query head, where these share them."""
    if k.shape[1] == q.shape[1]:
        return []
    return [torch.empty(q.shape[0], q.shape[1], k.shape[2], t.shape[3], dtype=q.dtype) for t in (k, v)]


def _of_efficient(capability: tuple[int, int], q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """kernel_backward.h, `workspace_size`, of the kernel that kernels/generate_kernels.py puts first."""
    batch, heads, tokens, size = q.shape
    half, width = q.dtype in HALF, max(size, v.shape[3])
    rows, columns, registers = _block(capability, half, width)
    count = -(-tokens // rows) * -(-size // columns) * (rows * columns + 4) if half or capability >= (7, 0) else 0
    if half and not registers:
        splits = -(-k.shape[2] // columns)
        splits = 1 if batch * heads >= 256 and k.shape[2] <= 2 * columns else splits
        splits = max(1, min(splits, 200 // (batch * heads)))
        count += splits * columns * sum(t.shape[3] + -t.shape[3] % rows for t in (k, v))
    if half and (registers or not (7, 0) <= capability < (7, 5)):
        delta = _float32(batch, heads, tokens)
    else:
        delta = _delta(q, v)
    return [delta, _float32(batch, heads, count + -count % 4)] if count else [delta]


def _delta(q: Tensor, v: Tensor) -> Tensor:
    """A float32 sum per row, which is copied to be in the order of heads."""
    batch, heads, tokens, _ = q.shape
    product = [_float32(batch, heads, tokens, v.shape[3]) for _ in range(3 if q.dtype in HALF else 1)]  # of both in float32
    summed = _float32(batch, tokens, heads)
    delta = _float32(batch, heads, tokens) if heads > 1 and tokens > 1 else summed
    del product
    return delta


def _block(capability: tuple[int, int], half: bool, width: int) -> tuple[int, int, bool]:
    """Rows and columns of a kernel's blocks, and whether it keeps gradients of keys and values in registers."""
    most = next(limit for limit in (32, 64, 128, 2**16) if width <= limit)
    if half and 64 < width <= 96 and capability in ((8, 6), (8, 9)):
        return 128, 64, True
    roomy = capability in ((7, 0), (7, 2), (8, 0), (8, 7)) or capability[0] in (9, 10, 11)
    rows = 128 if most > 64 and roomy and (half or capability[0] >= 8) else 64
    registers = half and most <= rows
    return rows, 128 if registers and capability[0] >= 8 and most > 64 else 64, registers


def _by_token(*tensors: Tensor) -> list[Tensor]:
    """Copies of those that are not laid out as [batch, tokens, heads, size], for which `contiguous()` is asked of them."""
    return [torch.empty_like(t) for t in tensors if not t.transpose(1, 2).is_contiguous()]


def _float32(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32)
