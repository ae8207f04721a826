"""Dropout with no more memory than CUDA's kernels take: the CPU's make the mask a tensor of numbers, and multiply twice."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def fused_dropout() -> Iterator[None]:
    """Replace `native_dropout` and its backward on the CPU (aten/src/ATen/native/cuda/Dropout.cu)."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            library.impl("native_dropout", _forward, "CPU", allow_override=True)
            library.impl("native_dropout_backward", _backward, "CPU", allow_override=True)
        yield
    finally:
        library._destroy()


def _forward(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    kept = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
    return _backward(x, kept, 1 / (1 - p)), kept


def _backward(gradient: Tensor, kept: Tensor, scale: float) -> Tensor:
    out = torch.mul(gradient, scale)
    dropped = kept.logical_not_()
    out.masked_fill_(dropped, 0.0)
    kept.logical_not_()
    return out
