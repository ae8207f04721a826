"""The graph and its backward pass, in torch's order and with torch's frees.

A node holds what its operation saved. Backward runs the nodes latest first, passes gradients on, adds those that meet,
and lets go of a node's saved tensors as soon as it has run (torch/csrc/autograd/engine.cpp).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import ref

from estimator.tape.layout import is_dense
from estimator.tape.tape import GRADIENT, PARAMETER, TEMPORARY, Storage, Tape
from estimator.tape.tensor import Tensor, binary, empty, moved, output, unary

Gradient = Tensor | None
Hook = Callable[[dict[int, Gradient] | None], None]
"""What runs before a node does; gets the gradients that have come to its outputs."""
Saved = tuple[Gradient, ...]


@contextmanager
def no_grad(tape: Tape) -> Iterator[None]:
    """Run without building a graph (`torch.no_grad`)."""
    before, tape.grad_enabled = tape.grad_enabled, False
    yield
    tape.grad_enabled = before


class Packed(Protocol):
    """What saved-tensor hooks put in a tensor's place."""

    def unpack(self) -> Tensor:
        """The tensor, when backward needs it."""


class Node:
    """One operation in the graph: where its gradients go, what it saved, and how it computes them.

    `backward(*gradients, *saved)` gives a gradient (or None) per input. `edges` holds per input the node that made it
    and which of its outputs it was, or the leaf itself, or None where no gradient is wanted. `adds`: whether gradients that
    meet at its outputs may be added in place. `hooks` run when its gradients have come, before it does.
    """

    __slots__ = (
        "adds",
        "backward",
        "component",
        "edges",
        "gradients",
        "held",
        "hooks",
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
        self.gradients: dict[int, Gradient] | None = None
        self.hooks: tuple[Hook, ...] = ()
        self.held: Tensor | None = None
        self.slot = tape.slot
        self.adds = not tape.distributed
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
    """Run the graph that made `loss` backwards, leaving gradients on the leaves."""
    if loss.grad_fn is None:
        raise ValueError("nothing to differentiate: no parameter requires gradients")
    tape = loss.tape
    seed = empty(tape, loss.shape, loss.dtype, "ones_like")
    run_backward((loss,), (seed,))
    tape.fresh = TEMPORARY
    while tape.backward_callbacks:
        tape.backward_callbacks.pop()()


def run_backward(outs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Run the graph that made `outs` backwards from their gradients; an out may be a leaf itself.

    Consumers are always younger than producers, so running the youngest node first is torch's order.
    """
    tape = outs[0].tape
    outside, grad_enabled = tape.slot, tape.grad_enabled
    tape.grad_enabled = False
    roots, leaves = [], []
    for out, gradient in zip(outs, gradients, strict=True):
        root = out.grad_fn
        if root is None:
            leaves.append((out, gradient))
            continue
        if root.gradients is None:
            root.gradients = dict.fromkeys(range(root.outputs))
        root.gradients[out.output_nr] = gradient
        roots.append(root)
    nodes, uses = _reachable(roots)
    sums: dict[Tensor, Tensor] = {}
    for leaf, gradient in leaves:
        if uses[leaf]:
            _meet(sums, leaf, gradient)
        else:
            _collect(leaf, gradient, alone=False)
    while nodes:
        node = nodes.pop()
        tape.enter(node.slot)
        tape.fresh = node.component
        for hook in node.hooks:
            hook(node.gradients)
        if node.gradients is not None:
            _run(node, uses, sums)
    tape.enter(outside)
    tape.grad_enabled = grad_enabled


def _run(node: Node, uses: Counter[Tensor], sums: dict[Tensor, Tensor]) -> None:
    """Run one node and pass its gradients on: to other nodes, or to leaves, whose gradients wait for all `uses`."""
    incoming = [*(node.gradients or {}).values()]
    node.gradients = None
    saved = node.unpack()  # held until backward is over, which not every interpreter does with a call's arguments
    results = node.backward(*incoming, *saved)
    del saved
    outgoing: list[Any] = [results] if results is None or isinstance(results, Tensor) else list(results)
    del results
    for i, (shape, dtype) in enumerate(node.metadata):
        gradient = outgoing[i]
        if gradient is not None:
            if gradient.shape != shape:
                outgoing[i] = gradient = output("sum", (gradient,), shape, gradient.dtype)
            if gradient.dtype is not dtype:
                outgoing[i] = unary("_to_copy", outgoing[i], dtype)
    del gradient
    incoming.clear()
    node.saved, node.held = (), None
    for i, edge in enumerate(node.edges):
        gradient = outgoing[i]
        outgoing[i] = None
        if isinstance(edge, Tensor):
            uses[edge] -= 1
            if gradient is not None:
                _meet(sums, edge, gradient)
            gradient = None
            if not uses[edge] and edge in sums:
                for hook in edge.hooks:
                    hook({0: sums[edge]})
                alone = is_alone(sums, edge)
                gradient = sums.pop(edge)
                _collect(edge, gradient, alone)
        elif edge is not None and gradient is not None:
            target, number = edge
            if target.gradients is None:
                target.gradients = dict.fromkeys(range(target.outputs))
            _meet(target.gradients, number, gradient, target.adds)


def _meet(buffer: dict[Any, Any], key: Any, gradient: Tensor, in_place: bool = True) -> None:
    """Put a gradient where others may come, or add it to the one that is there, `in_place` if possible."""
    if buffer.get(key) is None:
        buffer[key] = gradient
    elif in_place and can_add_in_place(buffer, key):
        moved("add_", buffer[key], gradient, buffer[key])
    else:
        buffer[key] = binary("add", buffer[key], gradient)


def is_alone(sums: dict[Tensor, Tensor], leaf: Tensor) -> bool:
    """Whether nothing else refers to a leaf's gradient: whether it dies when another tensor on its bytes takes its place."""
    first = ref(sums[leaf])
    sums[leaf] = sums[leaf].detach()
    return first() is None


def can_add_in_place(buffer: dict[Any, Any], key: Any) -> bool:
    """Whether the engine adds a second gradient to the first without a new tensor.

    It does where nothing but the buffer refers to the first, and nothing but the first to its storage
    (torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`). A view in torch also keeps what it is a view of.

    References are not counted, since interpreters count them differently. The bytes are handed to another storage, which takes
    the first one's place: if that then dies, nothing else referred to it, and if not it gets them back.
    """
    gradient: Tensor = buffer[key]
    if gradient.is_view or not is_dense(gradient.shape, gradient.strides):
        return False
    storage = gradient.storage
    first, other = ref(storage), Storage(storage.tape, storage.nbytes, "", storage.form, filled=False)
    storage.hand_over(other)
    buffer[key] = Tensor(other, gradient.shape, gradient.dtype, gradient.strides)
    del gradient, storage
    left = first()
    if left is not None:
        other.hand_over(left)
        buffer[key].storage = left
    return left is None


def _collect(leaf: Tensor, gradient: Tensor, alone: bool) -> None:
    """What torch's AccumulateGrad does: keep the first gradient, add the later ones in place.

    It keeps a copy where the gradient has another layout than the leaf, or is not `alone` and goes elsewhere, too
    (torch/csrc/autograd/functions/accumulate_grad.h).
    """
    if leaf.grad is None:
        if not alone or gradient.strides != leaf.strides:
            gradient = output("clone", (gradient,), gradient.shape, gradient.dtype, leaf.strides)
        if leaf.tape.components[leaf.storage.index] == PARAMETER:
            gradient.storage.count_as(GRADIENT)
        leaf.grad = gradient.detach()
    else:
        moved("add_", leaf.grad, gradient, leaf.grad)
    if leaf.on_grad is not None:
        leaf.on_grad()


def _reachable(roots: Sequence[Node]) -> tuple[list[Node], Counter[Tensor]]:
    """The roots and every node behind them, youngest last, and how often each leaf is used."""
    seen = set(roots)
    stack = [*seen]
    uses: Counter[Tensor] = Counter()
    while stack:
        for edge in stack.pop().edges:
            if isinstance(edge, Tensor):
                uses[edge] += 1
            elif edge is not None and edge[0] not in seen:
                seen.add(edge[0])
                stack.append(edge[0])
    return sorted(seen, key=_age), uses


def _age(node: Node) -> int:
    return node.sequence
