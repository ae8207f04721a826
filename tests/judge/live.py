"""Live bytes, storage by storage, of whatever torch runs on fake tensors."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten
ALLOCATION_STEP = 512
"""Bytes: CUDA's caching allocator rounds up to a multiple."""


def rounded(nbytes: int) -> int:
    """The bytes of one allocation on CUDA."""
    return -(-nbytes // ALLOCATION_STEP) * ALLOCATION_STEP


class Live(TorchDispatchMode):
    """Counts the storages that are born while it is active, from birth to the last reference; views add nothing.

    `log` has an entry per change: bytes (negative if freed) and the operation during which it happened.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.sizes: dict[int, int] = {}
        self.log: list[tuple[int, str]] = []
        self.operation = ""
        self.in_backward = False

    def track(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage from now on; of a sharded tensor, the part that lies here."""
        storage = (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).untyped_storage()
        if storage._cdata not in self.sizes:
            self.measure(storage)

    def measure(self, storage: torch.UntypedStorage) -> None:
        """Count a storage with the bytes that it has now."""
        if storage._cdata not in self.sizes:
            self.sizes[storage._cdata] = 0
            weakref.finalize(storage, self._freed, storage._cdata)
        self._set(storage._cdata, rounded(storage.nbytes()))

    def highest(self, since: int) -> int:
        """The highest count from log entry `since` on, and just before it."""
        changes = [change for change, _ in self.log[since:]]
        return max(accumulate(changes, initial=self.bytes - sum(changes)))

    def forget(self, tensor: torch.Tensor) -> None:
        """Stop counting a tensor: on a machine with a GPU it lies in the host's memory."""
        self._set(tensor.untyped_storage()._cdata, 0)

    def _set(self, key: int, nbytes: int) -> None:
        change, self.sizes[key] = nbytes - self.sizes[key], nbytes
        if change:
            self.bytes += change
            self.log.append((change, self.operation))

    def _freed(self, key: int) -> None:
        self._set(key, 0)
        del self.sizes[key]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operation = func.name()
        if func is aten.add.Tensor and self.in_backward and not torch.is_grad_enabled() and _is_last_reference(args[0]):
            func = aten.add_.Tensor
        elif func is aten._safe_softmax.default:
            with self:
                return _safe_softmax(*args)
        result = func(*args, **(kwargs or {}))
        if func is aten.native_layer_norm.default:  # CUDA keeps the statistics of bf16 rows in float32
            result = (result[0], *(t.float() for t in result[1:]))
        tree_map_only(torch.Tensor, self.track, result)
        return result


def _is_last_reference(gradient: torch.Tensor) -> bool:
    """Whether the engine, which adds gradients in backward, holds the only reference to this one.

    Then it adds in place (torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`), but never while a dispatch mode
    is active. The counts include those of this call.
    """
    storage, count = gradient.untyped_storage(), gradient._use_count  # type: ignore[attr-defined]
    return count() == 4 and torch._C._storage_Use_Count(storage._cdata) == 2


def _safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """What the fused name runs (aten/src/ATen/native/SoftMax.cpp), so that its temporaries are seen."""
    out = torch.softmax(x, dim, dtype)
    masked = torch.isneginf(x)
    return out.masked_fill_(masked.all(dim, keepdim=True), 0.0)


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
