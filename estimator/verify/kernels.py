"""What CUDA's kernels hold besides their results, and where those for fake tensors make something else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
CHUNK = 65536
"""Elements that one block of CUDA's `_foreach_norm` reduces (`kChunkSize`, MultiTensorApply.cuh)."""

DENSE = {
    aten._softmax.default: 1,
    aten._log_softmax.default: 1,
    aten._log_softmax_backward_data.default: 1,
    aten.cumsum.default: 1,
    aten.native_layer_norm.default: 1,
    aten.native_layer_norm_backward.default: 2,
    aten.convolution.default: 1,
    aten.convolution_backward.default: 2,
    aten.avg_pool2d_backward.default: 1,
    aten.im2col.default: 1,
    aten.col2im.default: 1,
}
"""Operations that copy tensors that are not contiguous, within, and how many of their arguments they do this to.

(aten/src/ATen/native: Convolution.cpp, cudnn/ConvShared.cpp, cuda/SoftMax.cu, cuda/ScanUtils.cuh, cuda/layer_norm_kernel.cu,
cuda/AveragePool2d.cu, cuda/Im2Col.cu, cuda/Col2Im.cu.)
"""


def partial_norms(tensors: list[torch.Tensor]) -> torch.Tensor:
    """What CUDA reduces each chunk of each tensor to (aten/src/ATen/native/cuda/ForeachReduceOp.cu)."""
    longest = max(t.numel() for t in tensors)
    return torch.zeros(len(tensors) * -(-longest // CHUNK))


def counts(x: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """What CUDA's `masked_scatter` holds beside its result: the places before each, and a mask row by row
    (cuda/IndexKernel.cpp, `masked_scatter__cuda`; IndexKernel.cu, `launch_masked_scatter_kernel`)."""
    counts, expanded = torch.empty(x.shape, dtype=torch.int64), mask.expand(x.shape)
    return [counts] if expanded.is_contiguous() else [counts, torch.empty(x.shape, dtype=torch.bool)]


def scattered(gradient: torch.Tensor, mask: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """What a mask picks of a gradient, as CUDA finds it: by the places of what is not zero (FunctionsManual.cpp,
    `masked_scatter_backward_symint`; cuda/IndexKernel.cpp, `masked_select_out_cuda_impl`; cuda/Nonzero.cu)."""
    dense = mask.expand(gradient.shape).contiguous()
    places = torch.empty((gradient.dim(), math.prod(sizes)), dtype=torch.int64)
    del dense
    made = gradient.new_empty(sizes)
    del places
    return made


def safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """What the fused name runs (aten/src/ATen/native/SoftMax.cpp), so that its temporaries are seen."""
    out = torch.softmax(x, dim, dtype)
    masked = torch.isneginf(x)
    return torch.where(masked.all(dim, keepdim=True), torch.scalar_tensor(0.0, dtype=out.dtype), out, out=out)


def grouped_mm(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The result of CUDA's kernel, which takes every floating-point type, while the one for fake tensors takes bfloat16 only.

    Rows are padded to 16 bytes (aten/src/ATen/native/GroupedMMUtils.h, `create_grouped_gemm_output_tensor`).
    """
    columns, alignment = b.shape[-1], 16 // a.element_size()
    for matrix in (a, b):
        row = max(matrix.stride()[-2:])
        if row % alignment:
            raise ValueError(f"strides should be multiple of 16 bytes, got {row} elements")
    padded = -(-columns // alignment) * alignment
    if b.dim() == 3:
        return a.new_empty_strided((len(a), columns), (padded, 1))
    return a.new_empty_strided((len(offsets), len(a), columns), (len(a) * padded, padded, 1))


def all_of(mask: torch.Tensor) -> torch.Tensor:
    """The places of what is not zero, where nothing is (labels of a batch: all are given)."""
    return torch.empty((mask.shape[0], mask.dim()), dtype=torch.int64)


def isinf(x: torch.Tensor) -> torch.Tensor:
    """Sizes are compared (aten/src/ATen/native/TensorCompare.cpp, `isinf`)."""
    return x.abs() == torch.inf


def _summed(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def ctc_loss(scores: torch.Tensor, targets: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What CUDA's own kernel makes of labels of one length (cuda/LossCTC.cu, `ctc_loss_gpu_template`)."""
    frames, batch = scores.shape[:2]
    each = scores.new_empty(batch)
    return each, scores.new_empty(batch, frames, 2 * (len(targets) // batch) + 1)


def ctc_loss_backward(g: torch.Tensor, scores: torch.Tensor, *given: Any) -> torch.Tensor:
    """Likewise (`ctc_loss_backward_gpu_template`): the gradient lies row by row, however the scores do."""
    onwards = torch.empty_like(given[4])
    made = scores.new_empty(scores.shape)
    del onwards
    return made


def embedding_bag(weight: torch.Tensor, ids: torch.Tensor, begins: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
    """What CUDA's own kernel makes of bags that are summed: the sums, which bag each id is in, the sizes of bags, and no places
    of greatest numbers (cuda/EmbeddingBag.cu, `_embedding_bag_cuda`)."""
    return weight.new_empty(len(begins), weight.shape[1]), torch.empty_like(ids), torch.empty_like(begins), ids.new_empty(0)


TEMPORARIES: dict[Any, Callable[[Any], torch.Tensor]] = {
    aten._foreach_norm.Scalar: partial_norms,
    aten.multinomial.default: torch.empty_like,
    aten.logsumexp.default: _summed,
}
"""What an operation makes of its first argument and holds until it is done: norms of chunks; probabilities that random numbers
divide (Distributions.cpp, `multinomial_out`); what is summed (ReduceOps.cpp, `logsumexp_out_impl`)."""

WRITTEN_OUT: dict[Any, Callable[..., Any]] = {
    aten._ctc_loss.default: ctc_loss,
    aten._ctc_loss_backward.default: ctc_loss_backward,
    aten._embedding_bag.default: embedding_bag,
    aten._embedding_bag_forward_only.default: embedding_bag,
    aten._safe_softmax.default: safe_softmax,
    aten.isinf.default: isinf,
    aten.masked_scatter_backward.default: scattered,
}
"""Operations whose own operations are seen: they run these instead."""
