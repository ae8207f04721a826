"""The host's memory on fake tensors: which storages FSDP2 moves out of the GPU, where the CPU stands for both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from estimator.verify.live import Live

_to = Tensor.to


@contextmanager
def host_seen(live: Live) -> Iterator[None]:
    """Copy where torch on a machine with a GPU copies between it and its host.

    FSDP2 moves shards by `cpu` and `pin_memory` when it makes them, and by `to(device, non_blocking=…)` later
    (torch/distributed/fsdp/_fully_shard: `_fsdp_param.py`, `_fsdp_collectives.py`). A copy to the host is pinned where it does
    not block (`_to_copy`, aten/src/ATen/native/TensorConversions.cpp).
    """

    def cpu(x: Tensor) -> Tensor:
        return live.empty_on_host(x, pinned=False)

    def pin_memory(x: Tensor) -> Tensor:
        return live.empty_on_host(x, pinned=True)

    def to(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if "non_blocking" not in kwargs or not args or not isinstance(args[0], torch.device):
            return _to(x, *args, **kwargs)
        if live.lies_on_host(x):
            return torch.empty(x.shape, dtype=x.dtype)
        return live.empty_on_host(x, pinned=kwargs["non_blocking"])

    with mock.patch.multiple(Tensor, cpu=cpu, pin_memory=pin_memory, to=to):
        yield
