"""Activation checkpointing: keep a segment's inputs, drop what it saved, run it again in backward.

Both kinds of torch.utils.checkpoint. Without re-entrance the forward pass builds its graph, but what would be saved becomes
a placeholder; the first placeholder that backward opens runs the segment again, up to the last tensor that was saved. With
re-entrance forward builds no graph; backward runs the segment again, whole, and then a backward pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from weakref import ref

from estimator.tape.autocast import autocast
from estimator.tape.autograd import Gradient, Packed, Saved, attach, keep, record, run_backward
from estimator.tape.offload import OnHost
from estimator.tape.selective import Cached, Caching, Policy, Store
from estimator.tape.tape import Recomputation
from estimator.tape.tensor import Tensor, empty

Positions = frozenset[int]
"""Which of a function's arguments, counted from 0."""
FIRST = frozenset({0})
EVERY = frozenset(range(16))


class Hooks(Protocol):
    """What stands between a node and the tensors that it saves (`torch.autograd.graph.saved_tensors_hooks`)."""

    def pack(self, tensors: Saved) -> tuple[Tensor | Packed | None, ...]:
        """What the node keeps instead of `tensors`."""


class _AllRecomputed(Exception):
    """Every tensor that forward saved has been saved again: the rest of the segment need not run."""


class _Placeholder:
    """Stands for the tensor that was the `index`-th to be saved in a segment."""

    __slots__ = ("__weakref__", "frame", "index")

    def __init__(self, frame: _Frame, index: int):
        self.frame, self.index = frame, index

    def unpack(self) -> Tensor:
        return self.frame.tensor(self.index)


class _Frame:
    """One run of a segment: its function and inputs, alive as long as a placeholder of it is. `offloads`: which
    inputs go to the host meanwhile, as tensors that are given by position do (`save_inputs` under `save_on_cpu`)."""

    def __init__(self, function: Callable[..., Tensor], args: tuple[Tensor | None, ...], offloads: Positions, early_stop: bool):
        self.function, self.early_stop = function, early_stop
        self.args: tuple[Tensor | OnHost | Packed | None, ...] = args
        self.placeholders: list[ref[_Placeholder]] = []
        self.recomputed: dict[int, Tensor] | None = None
        self.store: Store | None = None
        """What selective checkpointing has put aside, where it is selective."""
        tape = next(t for t in args if t is not None).tape
        self.tape, self.slot = tape, tape.slot
        self.autocast_dtype = tape.autocast.dtype if tape.autocast else None
        self.args = tuple([OnHost(t) if t is not None and i in offloads else t for i, t in enumerate(args)])
        for t in self.args:
            if isinstance(t, Tensor):
                keep(t)

    def pack(self, tensors: Saved) -> tuple[Packed | None, ...]:
        placeholders: list[Packed | None] = []
        for t in tensors:
            placeholder = None if t is None else _Placeholder(self, len(self.placeholders))
            if placeholder is not None:
                self.placeholders.append(ref(placeholder))
            placeholders.append(placeholder)
        return tuple(placeholders)

    def tensor(self, index: int) -> Tensor:
        if self.recomputed is None:
            self.recomputed = {}
            self._run_again(_Recomputation(self.recomputed, self.placeholders, self.early_stop))
        return self.recomputed.pop(index)

    def _run_again(self, hooks: _Recomputation) -> None:
        tape = self.tape
        given = [t.unpack() if isinstance(t, _Placeholder) else t for t in self.args]
        start, here, fresh, grad_enabled = len(tape.events), tape.slot, tape.fresh, tape.grad_enabled
        tape.saved_tensor_hooks, tape.grad_enabled, tape.recomputing = hooks, True, True
        tape.selection = None if self.store is None else Cached(self.store)
        args = [t.unpack() if isinstance(t, OnHost) else t for t in given]
        del given
        try:
            with autocast(tape, self.autocast_dtype):
                self.function(*args)
        except _AllRecomputed:
            pass
        finally:
            tape.saved_tensor_hooks, tape.grad_enabled, tape.recomputing = None, grad_enabled, False
            tape.selection = None
            tape.fresh = fresh
            tape.recomputations.append(Recomputation(start, len(tape.events), self.slot))
            tape.enter(here)


class _Recomputation:
    """Collects the tensors that the second run saves, until all are there. Those whose placeholder is gone nobody wants."""

    def __init__(self, tensors: dict[int, Tensor], placeholders: list[ref[_Placeholder]], early_stop: bool):
        self.tensors, self.early_stop = tensors, early_stop
        self.placeholders = placeholders
        self.saved = 0

    def pack(self, tensors: Saved) -> Saved:
        for t in tensors:
            if t is not None:
                if self.placeholders[self.saved]() is not None:
                    keep(t)
                    self.tensors[self.saved] = t.detach()
                self.saved += 1
        if self.early_stop and self.saved == len(self.placeholders):
            raise _AllRecomputed
        return tensors


def checkpoint(
    function: Callable[..., Any],
    *args: Tensor | None,
    policy: Policy | None = None,
    offloads: bool = False,
    by_position: Positions = FIRST,
    early_stop: bool = True,
) -> Any:
    """Run `function(*args)` so that its activations are recomputed in backward, but for the results that `policy` keeps.

    `offloads`: the arguments that are given `by_position` are kept in the host's memory. `early_stop`: the second run ends with
    the last tensor saved.
    """
    tape = next(t for t in args if t is not None).tape
    if not tape.grad_enabled or tape.saved_tensor_hooks is not None:
        return function(*args)
    tape.saved_tensor_hooks = frame = _Frame(function, args, by_position if offloads else frozenset(), early_stop)
    if policy is not None:
        frame.store = {}
        tape.selection = Caching(policy, frame.store)
    del frame
    try:
        return function(*args)
    finally:
        tape.saved_tensor_hooks = tape.selection = None


def checkpoint_within(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    """`checkpoint` in a segment that is recomputed itself; elsewhere `function(*args)` as it is.

    The segment around it holds its first argument, given by position, until it is run again, and runs again up to here. The
    others are the function's own, as keywords' values are.
    """
    tape = args[0].tape
    around = tape.saved_tensor_hooks
    if not isinstance(around, _Frame | _Recomputation):
        return function(*args)
    (first,) = around.pack(args[:1])
    tape.saved_tensor_hooks = frame = _Frame(function, args, frozenset(), around.early_stop)
    frame.args = (first, *args[1:])
    del frame, first
    try:
        return function(*args)
    finally:
        tape.saved_tensor_hooks = around


def reentrant_checkpoint(function: Callable[..., Any], *args: Tensor | None, by_position: Positions = FIRST) -> Any:
    """Checkpointing with re-entrance, by torch's `CheckpointFunction`: the inputs are saved, and `function(*args)` runs without a
    graph.

    Where it returns several tensors, those that nothing uses get a gradient of zeros. What all layers share is a keyword's value,
    part of the function: it lives as long as the graph (transformers, `GradientCheckpointingLayer.__call__`); unless it is given
    `by_position`, and so saved.
    """
    given_at = [isinstance(t, Tensor) and (i in by_position or t.requires_grad) for i, t in enumerate(args)]
    keywords = [None if there else t for there, t in zip(given_at, args, strict=True)]
    given = [t for there, t in zip(given_at, args, strict=True) if there and t is not None]
    tape = given[0].tape
    dtype = tape.autocast.dtype if tape.autocast else None

    def backward(*given: Gradient) -> list[Gradient]:
        gradients = [empty(tape, *made[i], "zeros") if g is None else g for i, g in enumerate(given[: len(made)])]
        remaining = iter([t for t in given[len(made) :] if t is not None])
        again = [next(remaining).detach() if there else t for there, t in zip(given_at, keywords, strict=True)]
        inputs = [t for there, t in zip(given_at, again, strict=True) if there and t is not None]
        for copy, want in zip(inputs, wanted, strict=True):
            copy.requires_grad = want
        tape.grad_enabled = tape.recomputing = True
        start, fresh = len(tape.events), tape.fresh
        with autocast(tape, dtype):
            outs = _each(function(*again))
        tape.fresh, tape.recomputing = fresh, False
        tape.recomputations.append(Recomputation(start, len(tape.events), tape.slot))
        asked = [(out, gradient) for out, gradient in zip(outs, gradients, strict=True) if out.requires_grad]
        run_backward(*zip(*asked, strict=True))
        tape.grad_enabled = False
        return [t.grad for t in inputs]

    wanted = [t.requires_grad for t in given]
    node = record("CheckpointFunction", given, tuple(given), backward)
    if node is None:
        return function(*args)
    tape.grad_enabled = False
    out = function(*args)
    tape.grad_enabled = True
    made = [(t.shape, t.dtype) for t in _each(out)]
    node.outputs = len(made)
    for i, t in enumerate(_each(out)):
        attach(node, t).output_nr = i
    return out


def _each(out: Tensor | tuple[Tensor | None, ...]) -> list[Tensor]:
    return [out] if isinstance(out, Tensor) else [t for t in out if t is not None]
