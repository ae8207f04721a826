"""The graph and its backward pass, in torch's order and with torch's frees.

A node holds what its operation saved. Backward runs the nodes latest first, passes gradients on, adds those that meet,
and lets go of a node's saved tensors as soon as it has run (torch/csrc/autograd/engine.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from estimator.dtypes import float32
from estimator.tape.layout import is_dense
from estimator.tape.tape import GRADIENT, PARAMETER, TEMPORARY
from estimator.tape.tensor import Tensor, binary, empty, unary

Gradient = Tensor | None
Saved = tuple[Gradient, ...]


class Packed(Protocol):
    """What saved-tensor hooks put in a tensor's place."""

    def unpack(self) -> Tensor:
        """The tensor, when backward needs it."""


class Node:
    """One operation in the graph: where its gradients go, what it saved, and how it computes them.

    `backward(*gradients, *saved)` gives a gradient (or None) per input. `edges` holds per input the node that made it
    and which of its outputs it was, or the leaf itself, or None where no gradient is wanted.
    """

    __slots__ = (
        "backward",
        "component",
        "edges",
        "gradients",
        "held",
        "hook",
        "metadata",
        "name",
        "outputs",
        "saved",
        "sequence",
        "slot",
    )

    def __init__(self, name: str, inputs: Sequence[Tensor], saved: Saved, backward: Callable[..., Any], outputs: int):
        tape = inputs[0].tape
        self.name = name
        self.backward = backward
        self.edges = [None if not t.requires_grad else t if t.grad_fn is None else (t.grad_fn, t.output_nr) for t in inputs]
        self.metadata = [(t.shape, t.dtype) for t in inputs]
        self.outputs = outputs
        self.gradients: list[Gradient] | None = None
        self.hook: Callable[[], None] | None = None
        self.held: Tensor | None = None
        self.slot = tape.slot
        self.component = tape.fresh
        self.sequence = tape.sequence
        tape.sequence += 1
        self.saved: tuple[Gradient | Packed, ...] = ()
        if saved:
            self.save(saved)

    def save(self, tensors: Saved) -> None:
        """Keep tensors for backward, or what the saved-tensor hooks make of them."""
        kept: tuple[Gradient | Packed, ...] = tensors
        for t in tensors:
            if t is not None:
                hooks = t.tape.saved_tensor_hooks
                if hooks is not None:
                    kept = hooks.pack(tensors)
                    break
                keep(t)
        self.saved = (*self.saved, *kept) if self.saved else kept

    def hold(self, t: Tensor) -> None:
        """Keep a tensor in the node itself, out of reach of saved-tensor hooks (an attribute of `ctx` in torch)."""
        keep(t)
        self.held = t.detach()

    def unpack(self) -> Saved:
        """The saved tensors, for use in backward."""
        return tuple(s if s is None or isinstance(s, Tensor) else s.unpack() for s in self.saved)


def keep(t: Tensor) -> None:
    """Count a saved tensor as an activation, unless it already is something else."""
    storage = t.storage
    tape = storage.tape
    if tape.components[storage.index] == TEMPORARY:
        tape.components[storage.index] = tape.kept


def record(name: str, inputs: Sequence[Tensor], saved: Saved, backward: Callable[..., Any], outputs: int = 1) -> Node | None:
    """Put an operation in the graph and save its inputs, before it runs; None if no gradient is wanted of it."""
    if inputs[0].tape.grad_enabled:
        for t in inputs:
            if t.requires_grad:
                return Node(name, inputs, saved, backward, outputs)
    return None


def attach(node: Node | None, out: Tensor, save: bool = False) -> Tensor:
    """Make `out` the node's output; `save` if the operation saves its result. (Detached, lest it keep itself alive.)"""
    if node is not None:
        out.grad_fn, out.requires_grad = node, True
        if save:
            node.save((out.detach(),))
    return out


def backward(loss: Tensor) -> None:
    """Run the graph that made `loss` backwards, leaving gradients on the leaves.

    Consumers are always younger than producers, so running the youngest node first is torch's order.
    """
    root = loss.grad_fn
    if root is None:
        raise ValueError("nothing to differentiate: no parameter requires gradients")
    tape = loss.tape
    outside = tape.slot
    tape.grad_enabled = False
    seed = empty(tape, loss.shape, float32, "ones_like")
    root.gradients = [seed]
    nodes = _reachable(root)
    while nodes:
        node = nodes.pop()
        tape.enter(node.slot)
        tape.fresh = node.component
        if node.hook is not None:
            node.hook()
        if node.gradients is not None:
            _run(node)
    tape.enter(outside)
    tape.fresh = TEMPORARY
    while tape.backward_callbacks:
        tape.backward_callbacks.pop()()
    tape.grad_enabled = True


def _run(node: Node) -> None:
    incoming = node.gradients or []
    node.gradients = None
    results = node.backward(*incoming, *node.unpack())
    outgoing: list[Any] = [results] if results is None or isinstance(results, Tensor) else list(results)
    del results
    for i, (shape, dtype) in enumerate(node.metadata):
        gradient = outgoing[i]
        if gradient is not None:
            if gradient.shape != shape:
                outgoing[i] = empty(gradient.tape, shape, gradient.dtype, "sum")
            if gradient.dtype is not dtype:
                outgoing[i] = unary("_to_copy", outgoing[i], dtype)
    del gradient
    incoming.clear()
    node.saved, node.held = (), None
    for i, edge in enumerate(node.edges):
        gradient = outgoing[i]
        outgoing[i] = None
        if edge is None or gradient is None:
            continue
        if isinstance(edge, Tensor):
            _collect(edge, gradient)
            continue
        target, number = edge
        if target.gradients is None:
            target.gradients = [None] * target.outputs
        waiting = target.gradients
        met = waiting[number]
        if met is None:
            waiting[number] = gradient
        elif not is_dense(met.shape, met.strides):
            waiting[number] = binary("add", met, gradient)
        del met


def _collect(leaf: Tensor, gradient: Tensor) -> None:
    """What torch's AccumulateGrad does: keep the first gradient, add the later ones in place."""
    if leaf.grad is None:
        if leaf.tape.components[leaf.storage.index] == PARAMETER:
            gradient.storage.count_as(GRADIENT)
        leaf.grad = gradient.detach()
    if leaf.on_grad is not None:
        leaf.on_grad()


def _reachable(root: Node) -> list[Node]:
    """Every node behind `root`, youngest last."""
    seen = {root}
    stack = [root]
    while stack:
        for edge in stack.pop().edges:
            if edge is not None and not isinstance(edge, Tensor):
                node = edge[0]
                if node not in seen:
                    seen.add(node)
                    stack.append(node)
    return sorted(seen, key=_age)


def _age(node: Node) -> int:
    return node.sequence
