"""Activation checkpointing: keep a segment's inputs, drop what it saved, run it again in backward.

This is torch.utils.checkpoint without re-entrance: the forward pass builds its graph, but what would be saved becomes a
placeholder; the first placeholder that backward opens runs the segment again, up to the last tensor that was saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from estimator.tape.autocast import autocast
from estimator.tape.autograd import Packed, Saved, keep
from estimator.tape.tensor import Tensor


class Hooks(Protocol):
    """What stands between a node and the tensors that it saves (`torch.autograd.graph.saved_tensors_hooks`)."""

    def pack(self, tensors: Saved) -> tuple[Tensor | Packed | None, ...]:
        """What the node keeps instead of `tensors`."""


class _AllRecomputed(Exception):
    """Every tensor that forward saved has been saved again: the rest of the segment need not run."""


class _Placeholder:
    """Stands for the tensor that was the `index`-th to be saved in a segment."""

    __slots__ = ("frame", "index")

    def __init__(self, frame: _Frame, index: int):
        self.frame, self.index = frame, index

    def unpack(self) -> Tensor:
        return self.frame.tensor(self.index)


class _Frame:
    """One run of a segment: its function and inputs, alive as long as a placeholder of it is."""

    def __init__(self, function: Callable[..., Tensor], args: tuple[Tensor | None, ...]):
        self.function = function
        self.args = args
        self.saved = 0
        self.recomputed: dict[int, Tensor] | None = None
        tape = next(t for t in args if t is not None).tape
        self.autocast_dtype = tape.autocast.dtype if tape.autocast else None
        for t in args:
            if t is not None:
                keep(t)

    def pack(self, tensors: Saved) -> tuple[Packed | None, ...]:
        placeholders: list[Packed | None] = []
        for t in tensors:
            placeholders.append(None if t is None else _Placeholder(self, self.saved))
            self.saved += t is not None
        return tuple(placeholders)

    def tensor(self, index: int) -> Tensor:
        if self.recomputed is None:
            self.recomputed = {}
            self._run_again(_Recomputation(self.recomputed, self.saved))
        return self.recomputed.pop(index)

    def _run_again(self, hooks: _Recomputation) -> None:
        tape = next(t for t in self.args if t is not None).tape
        here, fresh, grad_enabled = tape.slot, tape.fresh, tape.grad_enabled
        tape.saved_tensor_hooks, tape.grad_enabled, tape.recomputing = hooks, True, True
        try:
            with autocast(tape, self.autocast_dtype):
                self.function(*self.args)
        except _AllRecomputed:
            pass
        finally:
            tape.saved_tensor_hooks, tape.grad_enabled, tape.recomputing = None, grad_enabled, False
            tape.fresh = fresh
            tape.enter(here)


class _Recomputation:
    """Collects the tensors that the second run saves, until all `wanted` are there."""

    def __init__(self, tensors: dict[int, Tensor], wanted: int):
        self.tensors = tensors
        self.wanted = wanted
        self.saved = 0

    def pack(self, tensors: Saved) -> Saved:
        for t in tensors:
            if t is not None:
                keep(t)
                self.tensors[self.saved] = t.detach()
                self.saved += 1
        if self.saved == self.wanted:
            raise _AllRecomputed
        return tensors


def checkpoint(function: Callable[..., Tensor], *args: Tensor | None) -> Tensor:
    """Run `function(*args)` so that its activations are recomputed in backward."""
    tape = next(t for t in args if t is not None).tape
    if not tape.grad_enabled or tape.saved_tensor_hooks is not None:
        return function(*args)
    tape.saved_tensor_hooks = _Frame(function, args)
    try:
        return function(*args)
    finally:
        tape.saved_tensor_hooks = None
