"""`torch.einsum` of two operands: how they are laid out for one batched product, and what becomes of its result.

After aten/src/ATen/native/Linear.cpp (`einsum`, `sumproduct_pair`). An index is a batch (in both operands and the result), one
operand's own, or summed. Which operand an index belongs to is decided by size: one of size 1 belongs to none, and counts as
the right one's own.
"""

from __future__ import annotations

from math import prod

from estimator.tape.autocast import cast
from estimator.tape.autograd import attach, record
from estimator.tape.layout import Shape, contiguous, normalized
from estimator.tape.matmul import bmm
from estimator.tape.tensor import Tensor, alias
from estimator.tape.views import permute, reshape


def einsum(equation: str, a: Tensor, b: Tensor) -> Tensor:
    """`torch.einsum(equation, a, b)`. Summed indices must have the same size in both."""
    inputs, result = equation.split("->")
    own_a, own_b = inputs.split(",")
    a, b = cast(a), cast(b)
    wide_a, wide_b = (
        {label: size for label, size in zip(own, x.shape, strict=True) if size != 1} for own, x in ((own_a, a), (own_b, b))
    )
    summed = [label for label in sorted(wide_a.keys() | wide_b.keys()) if label not in result]
    batch = [label for label in result if label in wide_a and label in wide_b]
    left = [label for label in result if label in wide_a and label not in wide_b]
    right = [label for label in result if label not in wide_a]
    if left and right and result.index(right[-1]) < result.index(left[0]):  # then the product comes out in the result's order
        a, b, own_a, own_b, left, right = b, a, own_b, own_a, right, left
        wide_a, wide_b = wide_b, wide_a
    sizes = wide_a | wide_b
    count, m, n, k = (prod([sizes.get(label, 1) for label in labels]) for labels in (batch, left, right, summed))
    flat_a = reshape(_arranged(a, own_a, [*batch, *left, *summed, *right]), (count, m, k))
    flat_b = reshape(_arranged(b, own_b, [*batch, *summed, *right, *left]), (count, k, n))
    product = bmm(flat_a, flat_b)
    del flat_a, flat_b
    return _named(product, [*batch, *left, *right], result, sizes)


def _arranged(x: Tensor, own: str, labels: list[str]) -> Tensor:
    """Dimensions in the order of `labels`, those that `x` lacks with one element; a view."""
    places = {label: i for i, label in enumerate(own)}
    strides = x.element_strides()
    shape = tuple([x.shape[places[label]] if label in places else 1 for label in labels])
    steps = tuple([strides[places[label]] if label in places else 1 for label in labels])
    before, back = x.shape, [labels.index(label) for label in own]
    node = record("PermuteBackward", (x,), (), lambda g: reshape(permute(g, [*back, *missing]), before))
    missing = [i for i, label in enumerate(labels) if label not in places]
    return attach(node, alias(x, shape, normalized(shape, steps)))


def _named(product: Tensor, labels: list[str], result: str, sizes: dict[str, int]) -> Tensor:
    """The product of [batch, left, right], with its dimensions unfolded to `labels` and put in the result's order; a view."""
    unfolded: Shape = tuple([sizes.get(label, 1) for label in labels])
    steps = contiguous(unfolded)
    shape = tuple([sizes.get(label, 1) for label in result])
    strides = tuple([steps[labels.index(label)] for label in result])
    before, back = product.shape, [result.index(label) for label in labels]
    node = record("PermuteBackward", (product,), (), lambda g: reshape(permute(g, back), before))
    return attach(node, alias(product, shape, normalized(shape, strides)))
