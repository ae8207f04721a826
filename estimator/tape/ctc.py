"""Connectionist temporal classification: the loss of a speech recognizer that says a label or nothing in each frame.

After transformers' loss/loss_ctc.py (5.23), which turns cuDNN's off, and torch's aten/src/ATen/native/LossCTC.cpp and
cuda/LossCTC.cu.
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.pointwise import div, to, where
from estimator.tape.reduction import mean, sum_dim
from estimator.tape.tensor import Tensor, binary, empty, output, unary
from estimator.tape.views import contiguous, transpose


def ctc(logits: Tensor, labels: Tensor, reduction: str = "sum", zero_infinity: bool = False) -> Tensor:
    """The loss of logits [batch, frames, classes] with labels [batch, labels], none of which is padding."""
    compared = [empty(labels.tape, labels.shape, dtypes.bool_, "ne") for _ in ("ignored", "blank")]
    mask = empty(labels.tape, labels.shape, dtypes.bool_, "bitwise_and")
    del compared
    lengths = empty(labels.tape, labels.shape[:1], dtypes.int64, "sum")
    targets = empty(labels.tape, (labels.numel,), dtypes.int64, "index")
    scores = transpose(_log_softmax(logits), 0, 1)
    each = _each(scores, targets, labels.shape[1])
    if zero_infinity:
        infinite = unary("eq", each, dtypes.bool_)
        each = where(infinite, each)
        del infinite
    if reduction == "mean":
        each = mean(div(each, empty(labels.tape, labels.shape[:1], dtypes.float32, "clamp_min")), 0)
    else:
        each = sum_dim(each, 0)
    del mask, lengths
    return each


def _log_softmax(x: Tensor) -> Tensor:
    """In float32, which float16 becomes within the kernel, and bfloat16 before it (SoftMax.cpp). Saves its result, which is
    contiguous; the kernel and that of backward work on a copy of what is not (cuda/SoftMax.cu)."""
    half = x.dtype is dtypes.float16
    wide = x if half else to(x, dtypes.float32)

    def backward(g: Tensor, y: Tensor) -> Tensor:
        dense = contiguous(g)
        return binary("_log_softmax_backward_data", dense, y, dtypes.float16 if half else dtypes.float32)

    node = record("LogSoftmaxBackward", (wide,), (), backward)
    dense = contiguous(wide.detach())
    out = unary("_log_softmax", dense, dtypes.float32)
    del dense
    return attach(node, out, save=True)


def _each(scores: Tensor, targets: Tensor, longest: int) -> Tensor:
    """The loss of each sequence, [batch], of scores [frames, batch, classes]. Saves these, the targets, and sums over the paths
    that lead to each place of each, [batch, frames, 2 x labels + 1]; backward makes those of the paths that lead on."""
    frames, batch, _ = scores.shape
    paths = (batch, frames, 2 * longest + 1)

    def backward(g: Tensor, scores: Tensor, *_: Tensor) -> Tensor:
        onwards = empty(g.tape, paths, dtypes.float32, "_ctc_loss_backward")
        gradient = output("_ctc_loss_backward", (scores, onwards), scores.shape, dtypes.float32)
        del onwards
        return gradient

    node = record("CtcLossBackward", (scores,), (scores, targets), backward)
    out = empty(scores.tape, (batch,), dtypes.float32, "_ctc_loss")
    sums = output("_ctc_loss", (scores,), paths, dtypes.float32)
    if node is not None:
        node.save((sums,))
    return attach(node, out, save=True)
