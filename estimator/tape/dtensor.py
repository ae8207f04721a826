"""DTensor's redistributions: how the parts that ranks hold of a tensor become other parts, and what that allocates.

A dimension of which each rank has a part is gathered in a buffer of whole parts, one after the other, and joined from it; what
is reduced and scattered is first laid out so. After torch/distributed/_functional_collectives.py (`all_gather_single`,
`reduce_scatter_single`) and torch/distributed/tensor/_redistribute.py of 2.13.
"""

from __future__ import annotations

from functools import partial
from math import prod

from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.collectives import Group, all_gather, reduce_scatter
from estimator.tape.selective import made
from estimator.tape.tensor import Tensor, alias, empty, unary


def distributed(x: Tensor) -> Tensor:
    """`DTensor.from_local`: a view."""
    return attach(record("FromTorchTensor", (x,), (), lambda g: g), alias(x, x.shape, x.strides))


def gathered(x: Tensor, dim: int, group: Group) -> Tensor:
    """From parts of a dimension to the whole on each rank, whose gradients are of this rank's share: summed, and scattered."""
    node = record("Redistribute", (x,), (), lambda g: _scatter(g, dim, group))
    return attach(node, _gather(x, dim, group))


def scattered(x: Tensor, dim: int, group: Group) -> Tensor:
    """From a share of a sum on each rank to parts of it along a dimension; gradients are gathered."""
    node = record("Redistribute", (x,), (), lambda g: _gather(g, dim, group))
    return attach(node, _scatter(x, dim, group))


def replicated(x: Tensor, dim: int, group: Group) -> Tensor:
    """From parts of a dimension to the whole on each rank, whose gradients are the whole's: of them each rank copies its part."""
    part = x.shape
    node = record("Redistribute", (x,), (), lambda g: empty(g.tape, part, g.dtype, "clone"))
    return attach(node, _gather(x, dim, group))


def masked(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Which ids are another rank's, and this rank's own rows of the others (placement_types.py, `_MaskPartial`)."""
    below, above = (unary(name, ids, dtypes.bool_) for name in ("lt", "ge"))
    mask = unary("or", below)
    del below, above
    copied = unary("clone", ids)
    return mask, unary("sub", copied)


def _gather(x: Tensor, dim: int, group: Group) -> Tensor:
    shape = (*x.shape[:dim], x.shape[dim] * group.size, *x.shape[dim + 1 :])
    parts = all_gather(x, group)
    if prod(x.shape[:dim]) == 1:
        return alias(parts, shape)
    return empty(x.tape, shape, x.dtype, "cat")


def _scatter(x: Tensor, dim: int, group: Group) -> Tensor:
    exchange = partial(reduce_scatter, alias(unary("cat", x), (x.numel,)), group)
    own = made(x.tape, "reduce_scatter", exchange)
    del exchange
    return Tensor(own.storage, (*x.shape[:dim], x.shape[dim] // group.size, *x.shape[dim + 1 :]), x.dtype)
