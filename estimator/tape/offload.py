"""What is saved for backward, kept in the host's memory: `torch.autograd.graph.save_on_cpu(pin_memory=True)`.

Each tensor that a node saves is copied on its own, views as wide as they look, and weights like any other tensor; unpacking makes
a new tensor on the GPU, contiguous, for as long as the node's backward runs (torch/autograd/graph.py).
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from estimator.tape.autograd import Packed, Saved
from estimator.tape.host import pinned_bytes
from estimator.tape.slots import Slot
from estimator.tape.tape import SAVED, Tape
from estimator.tape.tensor import Tensor, empty


class Copy(NamedTuple):
    """A tensor copied to the host: in which forward pass, the bytes that hold it there, and the slot that it was saved in."""

    micro_step: int
    host_bytes: int
    slot: Slot | None


class OnHost:
    """A tensor in the host's memory."""

    __slots__ = ("like", "nbytes", "node", "tape", "wanted")

    def __init__(self, t: Tensor):
        tape = t.tape
        self.tape, self.like = tape, (t.shape, t.dtype)
        self.wanted, self.node = t.requires_grad, (t.grad_fn, t.output_nr)
        forwards = sum(phase.name == "forward" for phase in tape.phases)
        self.nbytes = prod(t.shape) * t.dtype.itemsize
        tape.copies.append(Copy(forwards, pinned_bytes(self.nbytes), tape.slot))
        tape.copy("to_host", self.nbytes, SAVED)

    def unpack(self) -> Tensor:
        t = empty(self.tape, *self.like, "_to_copy")
        self.tape.copy("from_host", self.nbytes, SAVED)
        t.requires_grad = self.wanted
        t.grad_fn, t.output_nr = self.node
        return t


class Offload:
    """The hooks of `save_on_cpu`."""

    def pack(self, tensors: Saved) -> tuple[Packed | None, ...]:
        return tuple([None if t is None else OnHost(t) for t in tensors])


def host_bytes(tape: Tape) -> int:
    """Pinned bytes of the host that hold what one forward pass saves. Backward only gives back."""
    by_step: dict[int, int] = {}
    for copy in tape.copies:
        by_step[copy.micro_step] = by_step.get(copy.micro_step, 0) + copy.host_bytes * (copy.slot.total if copy.slot else 1)
    return max(by_step.values(), default=0)
