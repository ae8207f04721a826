"""A part of a layer whose result is discarded, and made again in backward just before something reads it.

After `CheckpointWithoutOutput` of core/tensor_parallel/random.py (0.15). What comes after has saved the result: its bytes are
given back, and taken again. What is made again is another tensor, copied there, which lives until its own backward pass is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.tape.autograd import Gradient, attach, keep, record, run_backward
from estimator.tape.tape import Recomputation
from estimator.tape.tensor import Tensor


class WithoutOutput:
    """Runs `function(*args)`, which returns a tensor or several, without a graph."""

    def __init__(self, function: Callable[..., Any], *args: Tensor):
        self.function = function
        self.inputs: list[Tensor] = []
        self.again: list[Tensor] = []
        self.tape = tape = args[0].tape
        enabled = tape.grad_enabled
        self.node = record("CheckpointWithoutOutput", args, args, self._backward)
        tape.grad_enabled = False
        self.outputs = _each(function(*args))
        tape.grad_enabled = enabled
        if self.node is not None:
            self.node.outputs = len(self.outputs)
        for i, out in enumerate(self.outputs):
            attach(self.node, out).output_nr = i

    def discard(self, after: Tensor) -> None:
        """Give the results' bytes back; they are made again when the gradient of `after` is there."""
        for out in self.outputs:
            out.storage.release()
        if self.node is not None and after.grad_fn is not None:
            after.grad_fn.hooks = (self._recompute,)

    def _recompute(self, _: object = None) -> None:
        tape, node = self.tape, self.node
        assert node is not None
        start, fresh = len(tape.events), tape.fresh
        self.inputs = [t.detach() for t in node.unpack() if t is not None]
        for copy, edge in zip(self.inputs, node.edges, strict=True):
            copy.requires_grad = edge is not None
        tape.grad_enabled = tape.recomputing = True
        self.again = _each(self.function(*self.inputs))
        tape.grad_enabled = tape.recomputing = False
        for out in self.outputs:
            out.storage.refill("resize_")
            keep(out)
        tape.fresh, self.outputs, self.node = fresh, [], None
        tape.recomputations.append(Recomputation(start, len(tape.events), tape.slot))

    def _backward(self, *given: Gradient) -> list[Gradient]:
        gradients = [g for g in given[: len(self.again)] if g is not None]
        run_backward(self.again, gradients)
        self.again = []
        inputs, self.inputs = self.inputs, []
        return [t.grad for t in inputs]


def _each(out: Tensor | tuple[Tensor, ...] | list[Tensor]) -> list[Tensor]:
    return [out] if isinstance(out, Tensor) else [*out]


def discarding(then: Callable[..., Tensor], function: Callable[..., Any], *args: Tensor) -> Tensor:
    """`then(function(*args))`, without what is between."""
    made = WithoutOutput(function, *args)
    out = then(*made.outputs)
    made.discard(out)
    return out
