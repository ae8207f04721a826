"""Cut cross-entropy: output layer and loss in kernels that hold no logits.

apple/ml-cross-entropy (d42911f), cut_cross_entropy/cce.py, cce_lse_forward.py and cce_backward.py, with the defaults of
`linear_cross_entropy` and `shift=True`, as its patches of transformers call it (transformers/utils.py, `apply_lce`).
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, empty, like, unary
from estimator.tape.views import contiguous, reshape

ROWS, COLUMNS = 128, 64
"""Rows and columns of the block of a gradient that shares one lock."""


def cut_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, capped: bool = False) -> Tensor:
    """Mean cross-entropy of [batch, tokens, width] against the next tokens; `weight` is [vocabulary, width].

    `capped`: logits go through a tanh, which the kernels take along; that of the labels alone is an operation of its own
    (`softcapping`, utils.py).

    Saves both, in autocast's type if there is one; per token a float32 log-sum-exp and an int64 place; per entry of the
    vocabulary a float32 mean of its logits. Gradients are made in the type of what is saved. FLOPs are those of all blocks,
    also of those that its filter leaves out.
    """
    tape, (vocabulary, width) = hidden.tape, weight.shape
    wanted = [t.dtype if t.requires_grad else None for t in (hidden, weight)]
    rows = reshape(contiguous(hidden), (-1, width))
    places = _places(labels)
    (count,) = places.shape

    def backward(g: Tensor, e: Tensor, c: Tensor, *_: Tensor) -> list[Gradient]:
        assert places.shape  # `ctx.params` has them, which lives as long as the loss
        order = _order(c)
        made = [None if dtype is None else like("zeros_like", t) for dtype, t in zip(wanted, (e, c), strict=True)]
        locks = [
            empty(tape, (-(-t.shape[0] // ROWS), -(-width // COLUMNS)), dtypes.int32, "new_zeros") for t in made if t is not None
        ]
        tape.multiply(count, vocabulary, width, e.dtype, 1 + len(locks))
        for i in (1, 0):  # the weight's first
            if (dtype := wanted[i]) is not None and (gradient := made[i]) is not None:
                made[i] = to(gradient, dtype)
                del gradient
        del order, locks
        return made

    typed = [t if tape.autocast is None else to(t, tape.autocast.dtype) for t in (rows.detach(), weight.detach())]
    sums = empty(tape, (count,), dtypes.float32, "new_full")
    locks = empty(tape, (-(-count // ROWS),), dtypes.int32, "new_full")
    node = record("LinearCrossEntropy", (rows, weight), (*typed, sums, labels, places), backward)
    if node is not None:
        node.save((empty(tape, (vocabulary,), dtypes.float32, "new_full"),))
    del locks
    tape.multiply(count, vocabulary, width, typed[0].dtype)
    losses = empty(tape, (count,), dtypes.float32, "new_zeros")
    for operation in ("div", "tanh", "mul") if capped else ():
        losses = unary(operation, losses, dtypes.float32)
    out = empty(tape, (), dtypes.float32, "mean")
    del losses
    return attach(node, out)


def _places(labels: Tensor) -> Tensor:
    """Which of all tokens are asked for: all but each sequence's last (utils.py, `_build_flat_valids`)."""
    tape, (batch, tokens) = labels.tape, labels.shape
    shape = (batch * (tokens - 1), 2)
    compared = empty(tape, (batch, tokens - 1), dtypes.bool_, "ne")
    found = empty(tape, shape, dtypes.int64, "nonzero")
    del compared
    narrow = unary("_to_copy", found, dtypes.int32)
    del found
    return empty(narrow.tape, shape[:1], dtypes.int64, "sum")


def _order(weight: Tensor) -> Tensor:
    """The vocabulary's entries in the order of their means (`sort_logit_avg`)."""
    tape, shape = weight.tape, weight.shape[:1]
    values, found = empty(tape, shape, dtypes.float32, "sort"), empty(tape, shape, dtypes.int64, "sort")
    del values
    return unary("_to_copy", found, dtypes.int32)
