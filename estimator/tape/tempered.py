"""Log-probabilities of the last tokens of a sequence, of logits that are divided by a temperature in place.

TRL 1.0.0, trl/experimental/ppo/ppo_trainer.py (`logits /= args.temperature`) and trl/trainer/utils.py, `selective_log_softmax`:
sequence by sequence, of float32 by sums of exponentials, else by a log-softmax.
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.layout import normalized
from estimator.tape.loss import log_softmax
from estimator.tape.pointwise import sub
from estimator.tape.selection import gather
from estimator.tape.tensor import Tensor, alias, binary, empty, unary
from estimator.tape.views import reshape, stack_first, unbind, unsqueeze


def tempered(logits: Tensor, answer: int) -> Tensor:
    """`logits[:, -answer - 1 : -1]`, divided in place: a view.

    The gradient is copied whole, and that of the view in it replaced (torch/csrc/autograd/functions/tensor.cpp, `CopySlices`).
    """
    whole = logits.shape
    part = whole[0], answer, whole[2]

    def replaced(g: Tensor) -> Tensor:
        result = empty(g.tape, whole, g.dtype, "new_empty_strided")
        piece = empty(g.tape, part, g.dtype, "clone")
        quotient = unary("div", piece)
        del piece, quotient
        return result

    base = attach(record("CopySlices", (logits,), (), replaced), Tensor(logits.storage, whole, logits.dtype, logits.strides))
    node = record("SliceBackward", (base,), (), lambda g: empty(g.tape, whole, g.dtype, "slice_backward"))
    return attach(node, alias(base, part, normalized(part, base.element_strides())))


def log_probs(logits: Tensor, words: Tensor) -> Tensor:
    """Log-probabilities of `words` [sequences, tokens] by logits [sequences, tokens, vocabulary]."""
    places = unsqueeze(words, 2)
    if logits.dtype is dtypes.float32:
        selected = gather(logits, places)
        sums = stack_first([logsumexp(row) for row in unbind(logits, 0)])
        found = sub(selected, unsqueeze(sums, 2))
    else:
        each = []
        for row, picked in zip(unbind(logits, 0), unbind(places, 0), strict=True):
            scores = log_softmax(row)
            each.append(gather(scores, picked))
        found = stack_first(each)
    return reshape(found, words.shape)


def logsumexp(x: Tensor) -> Tensor:
    """log(sum(exp(x))) over the last dimension. Saves x and its result; exponentials are a tensor of their own.

    ReduceOps.cpp, `logsumexp_out_impl`; FunctionsManual.cpp, `logsumexp_backward`: one expression.
    """

    def backward(g: Tensor, x: Tensor, result: Tensor) -> Tensor:
        less = binary("sub", x, unsqueeze(result, len(x.shape) - 1))
        grown = unary("exp", less)
        return binary("mul", unsqueeze(g, len(x.shape) - 1), grown)

    node = record("LogsumexpBackward", (x,), (x,), backward)
    exponentials = empty(x.tape, x.shape, x.dtype, "exp_")
    out = empty(x.tape, x.shape[:-1], x.dtype, "logsumexp")
    del exponentials
    return attach(node, out, save=True)
