"""Cross-entropy over a vocabulary that tensor-parallel ranks share, as DTensor's `loss_parallel` computes it.

After torch/distributed/tensor/parallel/loss.py and `_MaskPartial` of torch/distributed/tensor/placement_types.py (2.13).
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.collectives import Group, all_reduced
from estimator.tape.dtensor import masked
from estimator.tape.layout import Shape
from estimator.tape.tensor import Tensor, binary, empty, output, unary


def cross_entropy(logits: Tensor, target: Tensor, group: Group) -> Tensor:
    """Summed cross-entropy of [tokens, words of this rank] against [tokens]: a scalar that all ranks have.

    The gradient of the logits is made where the loss is differentiated; the logarithms pass it on.
    """
    node = record("LogSoftmaxBackward", (logits,), (), lambda g, y: g)
    return _nll_loss(attach(node, _log_softmax(logits.detach(), group), save=True), target, group)


def _log_softmax(x: Tensor, group: Group) -> Tensor:
    each = (x.shape[0], 1)
    highest = all_reduced(output("amax", (x,), each, x.dtype), group)
    shifted = binary("sub", x, highest)
    summed = all_reduced(output("sum", (unary("exp", shifted),), each, x.dtype), group)
    logsumexp = unary("log", summed)
    return binary("sub", shifted, logsumexp)


def _nll_loss(logp: Tensor, target: Tensor, group: Group) -> Tensor:
    """Saves the log-probabilities, the targets and their total weight."""
    node = record("NllLossBackward", (logp,), (logp, target), _backward)
    tape, tokens = logp.tape, logp.shape[0]
    safe = _safe(target)
    mask, own = masked(safe)
    picked = empty(tape, (tokens, 1), logp.dtype, "gather")
    reduced = all_reduced(picked, group)
    del mask
    negative = unary("neg", reduced)
    chosen = _where(target, negative)
    del negative
    counted = output("sum", (unary("ne", target, dtypes.bool_),), (), dtypes.int64)
    weight = empty(tape, (), logp.dtype, "_to_copy")
    del counted
    out = attach(node, output("sum", (chosen,), (), logp.dtype))
    del safe, own, picked, reduced, chosen
    if node is not None:
        node.save((weight,))
    return out


def _backward(g: Tensor, logp: Tensor, target: Tensor, *_: Tensor) -> Tensor:
    tape, tokens = logp.tape, logp.shape[0]
    safe = _safe(target)
    gradient = unary("zeros_like", logp)
    mask, own = masked(safe)
    update = unary("sub", unary("_to_copy", mask, logp.dtype))
    arange = empty(tape, (tokens,), dtypes.int64, "arange")
    scaled = _where(target, g, (tokens, 1))
    out = binary("mul", binary("add", gradient, unary("exp", logp)), scaled)
    del safe, mask, own, update, arange, scaled
    return out


def _safe(target: Tensor) -> Tensor:
    """Targets, with 0 for those that do not count."""
    return _where(target, target)


def _where(target: Tensor, x: Tensor, shape: Shape | None = None) -> Tensor:
    """`x` where a target counts, else 0."""
    counts = unary("ne", target, dtypes.bool_)
    zero = empty(x.tape, (), x.dtype, "scalar_tensor")
    out = empty(x.tape, shape or target.shape, x.dtype, "where")
    del counts, zero
    return out
