"""The modules of a decoder between whose ranks torch's `parallelize_module` shares tensors, with the exchanges around them.

After torch/distributed/tensor/parallel/style.py of 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.families.modules import Module
from estimator.tape import loss
from estimator.tape.autograd import attach, record
from estimator.tape.collectives import Group
from estimator.tape.dtensor import distributed, gathered, masked, replicated, scattered
from estimator.tape.tensor import Tensor, binary, empty

TOKENS = 1
"""The dimension of hidden states that tokens lie along."""


class Distributed:
    """A norm of this rank's tokens or heads (`SequenceParallel`)."""

    def __init__(self, own: Module):
        self.own = own

    def __call__(self, x: Tensor) -> Tensor:
        x.tape.distributed = True
        out = self.own(distributed(x))
        x.tape.distributed = False
        return out


class Gathering:
    """A module that gets all tokens (`PrepareModuleInput`)."""

    def __init__(self, own: Callable[..., Any], group: Group):
        self.own, self.group = own, group

    def __call__(self, hidden: Tensor, *others: Tensor | None) -> Any:
        tape = hidden.tape
        tape.distributed = True
        whole = gathered(hidden, TOKENS, self.group)
        tape.distributed = False
        return self.own(whole, *others)


class Rowwise:
    """A linear layer of whose result each rank keeps its part of the tokens."""

    def __init__(self, own: Module, group: Group):
        self.own, self.group = own, group

    def __call__(self, x: Tensor) -> Tensor:
        out = self.own(x)
        return scattered(out, TOKENS, self.group)


class Embedding:
    """A lookup in this rank's rows, zero where an id has none there. `head`: an output layer that has the same weight."""

    def __init__(self, own: Any, group: Group, head: Any | None):
        self.own, self.group, self.head = own, group, head
        self.weight: Tensor = own.weight

    def __call__(self, ids: Tensor) -> Tensor:
        weight = self.weight
        if self.head is not None:
            weight, self.head.weight = _shared(weight, self.group)
        mask, own = masked(ids)
        out = loss.embedding(weight, ids)
        del mask, own
        out = scattered(out, TOKENS, self.group)
        if self.own.require_grad and out.tape.grad_enabled:
            out.requires_grad = True
        return out


def _shared(weight: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """A weight as the embedding has it, with all rows, and as the output layer has it. Where their gradients meet, each rank
    copies its own rows of the first, and adds them."""

    def met(of_rows: Tensor, of_head: Tensor) -> Tensor:
        return binary("add", of_head, empty(of_rows.tape, of_head.shape, of_rows.dtype, "clone"))

    rows, *columns = weight.shape
    node = record("Shared", (weight,), (), met, 2)
    embedding = attach(node, Tensor(weight.storage, (rows * group.size, *columns), weight.dtype))
    head = attach(node, weight.detach())
    head.output_nr = 1
    return embedding, head


class Head:
    """The output layer: all tokens come in, and logits of all words go out, or, unless it `gathers`, of this rank's."""

    def __init__(self, own: Any, group: Group, gathers: bool):
        self.own, self.group, self.gathers = own, group, gathers

    def __call__(self, hidden: Tensor) -> Tensor:
        whole = gathered(hidden, TOKENS, self.group)
        logits = self.own(whole)
        return replicated(logits, len(logits.shape) - 1, self.group) if self.gathers else logits
