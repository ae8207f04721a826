"""Embedding and cross-entropy: the two ends of a language model."""

from __future__ import annotations

from estimator import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import contiguous


def embedding(weight: Tensor, ids: Tensor) -> Tensor:
    """Rows of `weight`. Saves the ids; the gradient is as large as the table."""
    shape = weight.shape
    node = record(
        "EmbeddingBackward", (weight,), (ids,), lambda g, ids: empty(g.tape, shape, g.dtype, "embedding_dense_backward")
    )
    return attach(node, empty(weight.tape, (*ids.shape, shape[1]), weight.dtype, "embedding"))


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of [tokens, vocabulary] against [tokens]: a scalar.

    It asks for log-probabilities of the logits' own type, so that autocast widens these alone, for the loss
    (aten/src/ATen/native/LossNLL.cpp, `cross_entropy_loss`).
    """
    return _nll_loss(log_softmax(logits), target)


def log_softmax(x: Tensor) -> Tensor:
    """Saves its result. The kernel works on a copy of what is not contiguous."""
    node = record("LogSoftmaxBackward", (x,), (), lambda g, y: unary("_log_softmax_backward_data", g))
    dense = contiguous(x.detach())
    out = empty(x.tape, x.shape, x.dtype, "_log_softmax")
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
