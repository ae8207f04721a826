"""torch's `scaled_dot_product_attention` on CUDA: which of its kernels runs.

aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of torch 2.13, `select_sdp_backend`: the first in order that takes these
arguments on this GPU. Shapes are [batch, heads, tokens, head size].
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.attention import cudnn, efficient, flash
from estimator.tape.dtypes import DType
from estimator.tape.math_attention import math
from estimator.tape.tensor import Tensor

FLASH_HEAD_SIZE = 256
"""Largest head that flash takes (`check_head_dim_size_flash`)."""
CUDNN_HEAD_SIZE = 128
"""Largest head that cuDNN 9.20 takes, but for the next (`check_cudnn_tensor_shapes`)."""
CUDNN_LATENT = (192, 128)
"""Sizes of a query's and a value's head that it takes, too."""
AMPERE = (8, 0)
SMALL = ((8, 6), (8, 10)), ((12, 0), (13, 0))
"""Compute capabilities with less shared memory: from the first on, to before the second."""

MASKED = "the model needs an attention mask at this length, and a mask keeps sdpa from flash attention"
FORBIDDEN = "cuDNN's and flash attention take half precision on compute capability 8.0 or later, and others may not run"
SCORES = "sdpa falls to the math kernel, which holds every score: "


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float = 0.0,
    causal: bool = False,
    grouped: bool = False,
    allow_efficient: bool = True,
) -> Tensor:
    """Attention in the kernel that torch chooses. `grouped`: fewer key heads are shared (`enable_gqa`). `allow_efficient`: the
    memory-efficient kernel is one of those that may run (`sdpa_kernel`)."""
    tape = q.tape
    dropout_p = 0.0 if tape.evaluating else dropout_p
    dtype = q.dtype if tape.autocast is None else tape.autocast.dtype
    shared = k.shape[1] != q.shape[1]
    if grouped or not shared:
        if _cudnn_takes(q, k, v, mask, dropout_p, dtype):
            return cudnn(q, k, v, mask, causal)
        if _flash_takes(q, v, mask, dropout_p, dtype):
            return flash(q, k, v, causal)
    if mask is not None:
        tape.remarks[MASKED] = None
    refused = _efficient_refuses(q, v, shared, dtype) if allow_efficient else FORBIDDEN
    if not refused:
        return efficient(q, k, v, mask, causal)
    tape.remarks[SCORES + refused] = None
    return math(q, k, v, mask, causal, dropout_p, grouped)


def _cudnn_takes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, dtype: DType) -> bool:
    """`check_prefer_cudnn_attention` and `can_use_cudnn_attention`: on Hopper and the Blackwell of data centres."""
    gpu, sizes = q.tape.gpu, (q.shape[3], v.shape[3])
    return (
        gpu.prefers_cudnn
        and dtype is not dtypes.float32
        and (max(sizes) <= CUDNN_HEAD_SIZE or sizes == CUDNN_LATENT)
        and not any(size % 8 for size in sizes)
        and k.shape[2] > 1
        and (16 * dropout_p).is_integer()
        and (mask is None or not mask.requires_grad)
    )


def _flash_takes(q: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, dtype: DType) -> bool:
    """`can_use_flash_attention`."""
    gpu, size = q.tape.gpu, q.shape[3]
    if mask is not None or dtype is dtypes.float32 or size != v.shape[3] or size > FLASH_HEAD_SIZE or not gpu.at_least(AMPERE):
        return False
    if size <= 192 or (size > 224 and not dropout_p) or not q.requires_grad:
        return True
    # backward of wide heads needs more shared memory than some have
    return not any(gpu.at_least(first) and not gpu.at_least(end) for first, end in SMALL)


def _efficient_refuses(q: Tensor, v: Tensor, shared: bool, dtype: DType) -> str:
    """Why `can_use_mem_efficient_attention` says no, if it does."""
    gpu, half = q.tape.gpu, dtype is not dtypes.float32
    if dtype is dtypes.bfloat16 and not gpu.at_least(AMPERE):
        return "before compute capability 8.0 no other kernel takes bf16" + ("" if shared else "; fp16 would be taken")
    alignment = 8 if half and gpu.at_least((7, 0)) else (4 if gpu.at_least(AMPERE) else 1)
    if q.shape[3] % alignment or v.shape[3] % alignment:
        return f"memory-efficient attention takes heads whose size is a multiple of {alignment}"
    if not shared:
        return ""
    if half and not gpu.at_least(AMPERE):
        return "only flash attention shares key heads, and needs compute capability 8.0"
    return "only flash attention shares key heads, in half precision without a mask"
