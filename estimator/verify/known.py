"""Numbers of fake tensors: computed along with them where a model asks for numbers, as those do that see images of any size.

A fake tensor whose numbers are known has them as `known`, a tensor of its own. What is computed of such tensors alone is known,
too. What a model makes on the host, although it trains on a GPU, is marked, and not counted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from transformers import vision_utils
from transformers.models.exaone4_5 import modeling_exaone4_5
from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

aten = torch.ops.aten
FACTORIES = {aten.arange.default, aten.arange.start, aten.arange.start_step, aten.zeros.default}
"""What makes numbers of none; one whole number, or a row of it, is known, too."""
LIKE = {aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.new_zeros.default, aten.new_ones.default}
"""What makes numbers of a tensor's shape and type alone."""
NEW = {aten.new_zeros.default, aten.new_ones.default}
ALIKE = {aten.zeros.default, aten.ones.default, aten.full.default, *LIKE}
"""What makes the same number throughout, which is known where all that can be known is asked for."""
CHOOSING = {aten.topk.default, aten.argmax.default}
"""What chooses experts by their scores."""
MOST = 2**25
"""Numbers of a tensor up to which they are computed."""


def know(tensor: torch.Tensor, values: Sequence[Any]) -> None:
    """Let a tensor have these numbers."""
    with _disable_current_modes():
        found = torch.tensor(values, dtype=tensor.dtype)
    if isinstance(tensor, FakeTensor):
        tensor.known = found  # type: ignore[attr-defined]
    else:
        tensor.copy_(found)


def know_all(tensor: torch.Tensor, value: float) -> None:
    """Let all numbers of a fake tensor be known to be this one."""
    if isinstance(tensor, FakeTensor):
        with _disable_current_modes():
            tensor.known = torch.tensor(value, dtype=tensor.dtype).expand(tensor.shape)  # type: ignore[attr-defined]


def numbers(tensor: torch.Tensor) -> torch.Tensor | None:
    """The numbers of a tensor, where they are known."""
    return getattr(tensor, "known", None) if isinstance(tensor, FakeTensor) else tensor


def choose_evenly(func: Any, args: Any, result: Any, experts: Collection[int]) -> None:
    """Let the experts that tokens choose be known, where an operation chooses among so many: in turn, so that each is chosen
    equally often."""
    chosen = result if func is aten.argmax.default else result[1]
    among = args[0].shape[-1]
    if among not in experts or not isinstance(chosen, FakeTensor):
        return
    with _disable_current_modes():
        turns = torch.arange(chosen.numel(), dtype=chosen.dtype) % among
        chosen.known = turns.reshape(chosen.shape)  # type: ignore[attr-defined]


def as_numbers(data: Any) -> Any:
    """A list of known numbers, each a tensor, as numbers."""
    if not isinstance(data, list) or not any_known(data):
        return data
    known = [numbers(x) if isinstance(x, FakeTensor) else None for x in data]
    return [x if found is None else found.item() for x, found in zip(data, known, strict=True)]


def picks(mask: torch.Tensor) -> int | None:
    """How many places a mask picks, where that is known."""
    found = numbers(mask)
    if found is None:
        return None
    with unset_fake_temporarily():
        return int(found.sum())


def any_known(args: Any) -> bool:
    """Whether numbers of a fake tensor are known."""
    return any(isinstance(t, FakeTensor) and hasattr(t, "known") for t in tree_leaves(args))


def computable(func: Any, args: Any, kwargs: Any, everything: bool = False) -> bool:
    """Whether the result of an operation is known: it is made of known numbers, or of none. `everything`: whether masks of one
    number throughout are known, too."""
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if everything and func in ALIKE:
        return math.prod(args[1] if func in NEW else args[0].shape if func in LIKE else args[0]) <= MOST
    if not given:
        row = func is aten.scalar_tensor.default or (func is aten.full.default and len(args[0]) == 1)
        return func in FACTORIES or (row and (everything or kwargs.get("dtype") is torch.int64))
    return all(numbers(t) is not None and t.numel() <= MOST for t in given)


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """The result on fake tensors, and their numbers along with it."""
    taken = tree_map_only(torch.Tensor, numbers if func not in LIKE else _like, (args, kwargs))
    with unset_fake_temporarily():
        found = func(*taken[0], **taken[1])
    try:
        result = func(*args, **kwargs)
    except (DataDependentOutputException, DynamicOutputShapeException):
        result = tree_map_only(torch.Tensor, torch.empty_like, found)
    hosted = any(lies_on_host(t) for t in tree_leaves((args, kwargs)))
    tree_map(lambda fake, real: _mark(fake, real, hosted), result, found)
    return result


def _like(tensor: torch.Tensor) -> torch.Tensor:
    with unset_fake_temporarily():
        return torch.empty(tensor.shape, dtype=tensor.dtype)


def _mark(fake: Any, real: Any, hosted: bool) -> None:
    if isinstance(fake, FakeTensor):
        fake.known = real  # type: ignore[attr-defined]
        fake.hosted = hosted  # type: ignore[attr-defined]


def lies_on_host(tensor: Any) -> bool:
    """Whether a model made a tensor on the host."""
    return bool(getattr(tensor, "hosted", False))


@contextmanager
def numbers_asked(live: Any) -> Iterator[None]:
    """Answers to what models ask about known numbers; what they make of them on the host is not counted by `live`."""
    plain_list, plain_window = FakeTensor.tolist, vision_utils.get_vision_window_index

    def listed(tensor: FakeTensor) -> Any:
        found = numbers(tensor)
        return plain_list(tensor) if found is None else found.tolist()

    def windows(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        live.hosting = live.knowing = True
        try:
            index, lengths = plain_window(*args, **kwargs)
        finally:
            live.hosting = False
        lengths.hosted = False  # type: ignore[attr-defined]
        live.count(lengths)
        return index, lengths

    with (
        mock.patch.object(FakeTensor, "tolist", listed),
        mock.patch.object(modeling_qwen2_5_vl, "get_vision_window_index", windows),
        mock.patch.object(modeling_qwen2_5_omni, "get_vision_window_index", windows),
        mock.patch.object(modeling_exaone4_5, "get_vision_window_index", windows),
    ):
        yield
