"""Embedding and cross-entropy: the two ends of a language model."""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, binary, empty, moved, output, unary
from estimator.tape.views import contiguous


def embedding(weight: Tensor, ids: Tensor) -> Tensor:
    """Rows of `weight`. Saves the ids; the gradient is as large as the table."""
    shape = weight.shape
    node = record("EmbeddingBackward", (weight,), (ids,), lambda g, ids: output("embedding_dense_backward", (g,), shape, g.dtype))
    out = empty(weight.tape, (*ids.shape, shape[1]), weight.dtype, "embedding")
    moved("embedding", out, out)
    return attach(node, out)


def embedding_bag(weight: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """Of each row of ids [bags, taps] the sum of so many rows of `weight`, each times its own of `weights`, which learn nothing
    (`F.embedding_bag`).

    Saves both, where each bag begins and how many ids it has, and which bag each id is in (cuda/EmbeddingBag.cu,
    `_embedding_bag_cuda`); the gradient is as large as the table.
    """
    shape, (bags, taps) = weight.shape, ids.shape
    begins = empty(ids.tape, (bags,), dtypes.int64, "arange")
    bag_of_each = empty(ids.tape, (bags * taps,), dtypes.int64, "_embedding_bag")
    sizes = empty(ids.tape, (bags,), dtypes.int64, "_embedding_bag")
    saved = ids, weights, begins, bag_of_each, sizes
    node = record("EmbeddingBagBackward", (weight,), saved, lambda g, *_: output("_embedding_bag_backward", (g,), shape, g.dtype))
    out = empty(weight.tape, (bags, shape[1]), weight.dtype, "_embedding_bag")
    moved("_embedding_bag", out, weights, ids, out)
    return attach(node, out)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of [tokens, vocabulary] against [tokens]: a scalar.

    It asks for log-probabilities of the logits' own type, so that autocast widens these alone, for the loss
    (aten/src/ATen/native/LossNLL.cpp, `cross_entropy_loss`).
    """
    return _nll_loss(log_softmax(logits), target)


def log_softmax(x: Tensor) -> Tensor:
    """Saves its result. The kernel works on a copy of what is not contiguous."""
    node = record("LogSoftmaxBackward", (x,), (), lambda g, y: binary("_log_softmax_backward_data", g, y, g.dtype))
    dense = contiguous(x.detach())
    out = unary("_log_softmax", dense)
    del dense
    return attach(node, out, save=True)


def _nll_loss(logp: Tensor, target: Tensor) -> Tensor:
    """Saves the log-probabilities, the targets and their total weight. Autocast runs it in float32; what it casts is an argument
    of its caller's, and held to the end."""
    wide = to(logp, dtypes.float32) if logp.tape.autocast else logp
    node = record("NllLossBackward", (wide,), (wide, target), lambda g, logp, *_: unary("nll_loss_backward", logp))
    out = attach(node, empty(wide.tape, (), wide.dtype, "nll_loss_forward"))
    weight = empty(wide.tape, (), wide.dtype, "nll_loss_forward")
    if node is not None:
        node.save((weight,))
    return out
