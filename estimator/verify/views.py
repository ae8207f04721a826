"""Views of fake tensors with the strides that torch's kernels give them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_impls import _compute_stride


@contextmanager
def real_strides() -> Iterator[None]:
    """Let `view` give dimensions of one element the strides that it gives them on real tensors (ATen/TensorUtils.cpp,
    `computeStride`). Those of fake ones are others (torch/_refs, `_reshape_view_helper`), and whether a linear layer folds its
    rows into one product depends on them (LinearAlgebra.cpp, `should_fold`).
    """
    plain: Any = torch._refs._reshape_view_helper

    def reshaped(a: torch.Tensor, *shape: Any, allow_copy: bool) -> torch.Tensor:
        made: torch.Tensor = plain(a, *shape, allow_copy=allow_copy)
        if 1 not in a.shape or not a.numel():
            return made
        strides = _compute_stride(a.shape, a.stride(), made.shape)
        return made if strides is None or tuple(strides) == made.stride() else a.as_strided(made.shape, strides)

    with mock.patch.object(torch._refs, "_reshape_view_helper", reshaped):
        yield
