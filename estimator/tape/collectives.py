"""Collectives: what the ranks of a group exchange, and the tensors in which it arrives.

Of tensors that are split or joined it is the first dimension. The bytes of an exchange are those of the whole tensor: what an
all-gather makes, what a reduce-scatter starts from, what an all-to-all sends.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from estimator.tape.layout import Shape
from estimator.tape.tensor import Tensor, empty, unary

RING, PIPELINED, BULK = "ring", "pipelined", "bulk"
"""How userbuffers hide an exchange: the next product goes on with each part that comes, the product before sends on each part
that is done, or both run side by side (transformer_engine/pytorch/module/base.py, `initialize_ub`)."""


class Group(NamedTuple):
    """Ranks that exchange something."""

    name: str
    size: int = 1


def all_gather(x: Tensor, group: Group, beside: str = "") -> Tensor:
    """The parts of all ranks, one after the other; `x` itself where there is but one. `beside`: as `Traffic` has it."""
    if group.size == 1:
        return x
    out = empty(x.tape, (x.shape[0] * group.size, *x.shape[1:]), x.dtype, "all_gather")
    x.tape.communicate("all_gather", group.name, group.size, out.nbytes, beside=beside)
    return out


def reduce_scatter(x: Tensor, group: Group, beside: str = "") -> Tensor:
    """This rank's part of the sum over ranks; `x` itself where there is but one."""
    if group.size == 1:
        return x
    x.tape.communicate("reduce_scatter", group.name, group.size, x.nbytes, beside=beside)
    return empty(x.tape, (x.shape[0] // group.size, *x.shape[1:]), x.dtype, "reduce_scatter")


def all_reduce(x: Tensor, group: Group) -> Tensor:
    """The sum over ranks, in place."""
    if group.size > 1:
        x.tape.communicate("all_reduce", group.name, group.size, x.nbytes)
    return x


def all_reduced(x: Tensor, group: Group) -> Tensor:
    """The sum over ranks, in a copy (torch/distributed/_functional_collectives.py)."""
    return all_reduce(unary("all_reduce", x), group)


def all_to_all(x: Tensor, group: Group, shape: Shape) -> Tensor:
    """A part to each rank, and one from each: a new tensor of `shape`; `x` itself where there is but one rank."""
    if group.size == 1:
        return x
    x.tape.communicate("all_to_all", group.name, group.size, max(x.nbytes, prod(shape) * x.dtype.itemsize))
    return empty(x.tape, shape, x.dtype, "all_to_all")


def receive(x: Tensor, group: Group) -> Tensor:
    """Receive `x` from another rank."""
    x.tape.communicate("receive", group.name, group.size, x.nbytes)
    return x
