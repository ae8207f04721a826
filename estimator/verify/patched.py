"""What of torch a count of live bytes replaces, because no dispatch tells it of what happens there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from estimator.verify import known
from estimator.verify.live import Live


@contextmanager
def shapes_unseen(live: Live) -> Iterator[None]:
    """DTensor asks for the shapes of results by making them on fake tensors, which take nothing on a GPU."""
    plain = ShardingPropagator._propagate_tensor_meta_non_cached

    def propagated(*args: Any) -> Any:
        before, live.entered = live.entered, False
        try:
            return plain(*args)
        finally:
            live.entered = before

    with mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", propagated):
        yield


@contextmanager
def numbers_seen(live: Live) -> Iterator[None]:
    """Let `live` count single numbers that are made for a device, `torch.tensor(3, device=x.device)`; others lie on the host."""
    plain = torch.tensor

    def tensor(data: Any, **settings: Any) -> torch.Tensor:
        made = plain(known.as_numbers(data), **settings)
        if settings.get("device") not in (None, "cpu") and live.entered:
            live.count(made)
        return made

    with mock.patch.object(torch, "tensor", tensor):
        yield


@contextmanager
def resizes_seen(live: Live) -> Iterator[None]:
    """Let `live` see what FSDP2 frees and refills in place."""
    plain = torch.UntypedStorage.resize_

    def resize(storage: Any, nbytes: int) -> Any:
        result = plain(storage, nbytes)
        live.operation = "resize_"
        live.measure(storage)
        return result

    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = plain  # type: ignore[method-assign]
