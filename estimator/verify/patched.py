"""What of torch a count of live bytes replaces, because no dispatch tells it of what happens there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from estimator.verify import known
from estimator.verify.live import Live

PLAIN = {bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
"""Types of arguments that say all of themselves. 1 and 1.0 are equal, so that a key has the type, too."""


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


@contextmanager
def short_keys() -> Iterator[None]:
    """Let fake tensors look up what an operation made of such arguments before by a key that takes a quarter of the time: by all
    that distinguishes a dense tensor without numbers, which torch's key names field by field, with what follows of these
    (torch/_subclasses/fake_tensor.py, `_prep_args_for_hash`). It is left to torch where anything else is among the arguments.
    """
    plain: Any = FakeTensorMode._prep_args_for_hash

    def described(mode: FakeTensorMode, result: list[Any], args: Any, *more: Any) -> None:
        begun, mapped = len(result), isinstance(args, dict)
        result.append((type(args), tuple(args) if mapped else len(args)))
        for arg in args.values() if mapped else args:
            kind = type(arg)
            if kind is FakeTensor:
                if arg.constant is not None or arg.fake_mode is not mode or arg.layout is not torch.strided:
                    break
                result += (arg.dtype, arg.shape, arg.stride(), arg.storage_offset(), arg.untyped_storage().nbytes())
                result += (arg.fake_device, arg.requires_grad, arg.is_conj(), arg.is_neg(), arg.is_inference())
            elif kind in PLAIN:
                result += (kind, arg)
            elif kind in (list, tuple, dict):
                described(mode, result, arg, *more)
            else:
                break
        else:
            return
        del result[begun:]
        plain(mode, result, args, *more)

    with mock.patch.object(FakeTensorMode, "_prep_args_for_hash", described):
        yield
