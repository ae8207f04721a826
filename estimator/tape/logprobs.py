"""Log-probabilities of given tokens from hidden states, a tile of logits at a time, and what else is read off a tile.

TRL's `ChunkedLogProbFunction` (1.16, trl/kernels/chunked_logprob.py) on CUDA: Triton kernels fold each tile into sums per token,
and turn it into its gradient in place; gradients are added up in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.dtypes import DType
from estimator.tape.layout import parts
from estimator.tape.pointwise import to
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, binary, empty, unary
from estimator.tape.views import narrow

TOKENS = 4096
"""Tokens in a tile (`TOKEN_CHUNK_SIZE`)."""
WORDS = 32768
"""Words of the vocabulary in a tile (`_CHUNKED_LOGPROB_CHUNK_SIZE`, trl/trainer/utils.py)."""


Metrics = tuple[Literal["entropy", "mean_logits", "is_top1"], ...]
"""What is read off the tiles in addition to log-probabilities; an entropy comes first, and has a gradient."""


@dataclass(frozen=True, slots=True)
class Head:
    """An output layer: weight [vocabulary, width] and bias, and what its products run in."""

    weight: Tensor
    bias: Tensor | None
    compute: DType


def log_probs(hidden: Tensor, head: Head, targets: Tensor, metrics: Metrics = ()) -> tuple[Tensor, ...]:
    """Log-probabilities [tokens] in float32, then the `metrics` in their order.

    `hidden` [tokens, width], `targets` [tokens]. Saves its arguments, the sums and the entropies.
    """
    tape, tokens = hidden.tape, hidden.shape[0]
    differentiable = "entropy" in metrics
    wants = hidden.requires_grad, head.weight.requires_grad, head.bias is not None and head.bias.requires_grad
    arguments = [hidden, head.weight, *(() if head.bias is None else (head.bias,))]

    def backward(*given: Gradient) -> tuple[Gradient, ...]:
        return _backward(given[2] if differentiable else given[1], head, wants)

    node = record("ChunkedLogProb", arguments, (), backward, outputs=2 if differentiable else 1)
    sums = [empty(tape, (tokens,), dtypes.float32, "zeros") for _ in range(7)]
    tile = _tile(tape, tokens, head.compute)
    for count in parts(tokens, TOKENS):
        rows = to(narrow(hidden.detach(), 0, count), head.compute)
        for first in range(0, head.weight.shape[0], WORDS):
            part = _words(head, first)
            tape.multiply(rows.shape[0], part.shape[0], rows.shape[1], rows.dtype)
            del part
    log_z = binary("add", sums[0], unary("log", sums[1]))
    out = unary("sub", log_z)
    results = [attach(node, out)]
    for name in metrics:
        if name == "entropy":
            results.append(attach(node, binary("sub", log_z, unary("div", log_z))))
            results[-1].output_nr = 1 if node is not None else 0
        elif name == "mean_logits":
            results.append(unary("div", log_z))
        else:
            results.append(binary("bitwise_and", unary("ge", log_z, dtypes.bool_), unary("gt", log_z, dtypes.bool_)))
    if node is not None:
        last = results[1].detach() if differentiable else log_z
        node.save((hidden, *(t.detach() for t in arguments[1:]), targets, log_z, last))
    del sums, tile, rows
    return tuple(results)


def _backward(hidden: Tensor | None, head: Head, wants: tuple[bool, bool, bool]) -> tuple[Gradient, ...]:
    assert hidden is not None
    tape, weight, bias = hidden.tape, head.weight, head.bias
    wide = [
        unary("zeros", t, dtypes.float32) if want and t is not None else None
        for t, want in zip((hidden, weight, bias), wants, strict=True)
    ]
    tile = _tile(tape, hidden.shape[0], head.compute)
    part: Tensor | None = None
    for count in parts(hidden.shape[0], TOKENS):
        rows = to(narrow(hidden, 0, count), head.compute)
        for first in range(0, weight.shape[0], WORDS):
            part = _words(head, first)
            products = 1 + wants[0] + wants[1]
            tape.multiply(rows.shape[0], part.shape[0], rows.shape[1], rows.dtype, products)
            if wants[2]:
                summed = empty(tape, part.shape[:1], dtypes.float32, "sum")
                del summed
    narrowed = [None if g is None else to(g, t.dtype) for g, t in zip(wide, (hidden, weight, bias), strict=True) if t is not None]
    del wide, tile, rows, part
    return tuple(narrowed)


def _tile(tape: Tape, tokens: int, dtype: DType) -> Tensor:
    return empty(tape, (min(tokens, TOKENS), WORDS), dtype, "logits")


def _words(head: Head, first: int) -> Tensor:
    """The rows of the weight for the words of a tile."""
    return to(narrow(head.weight.detach(), 0, min(WORDS, head.weight.shape[0] - first)), head.compute)


def masked_scatter(x: Tensor, mask: Tensor) -> Tensor:
    """Zeros of the mask's shape, and in a copy of them the elements of x where the mask is set. Saves the mask."""
    count = x.shape
    node = record("MaskedScatterBackward", (x,), (mask,), lambda g, _: empty(g.tape, count, g.dtype, "masked_scatter_backward"))
    zeros = empty(x.tape, mask.shape, x.dtype, "new_zeros")
    out = unary("masked_scatter", zeros)
    del zeros
    return attach(node, out)


def log_probs_of_logits(logits: Tensor, index: Tensor) -> Tensor:
    """Log-probabilities [...] in float32 of the words at `index`, of logits [..., vocabulary], which may be views.

    TRL's `_LogProbEntropyFunction` (trl/kernels/logprob_entropy.py), which makes entropies, too. Saves its arguments and
    two numbers of each row; the gradient is contiguous.
    """
    shape, dtype = logits.shape, logits.dtype
    node = record("LogProbEntropy", (logits,), (), lambda g, *_: empty(g.tape, shape, dtype, "empty_like"))
    found, entropy, *kept = [empty(logits.tape, shape[:-1], dtypes.float32, "empty_like") for _ in range(4)]
    if node is not None:
        node.save((logits, index, *kept))
    del entropy
    return attach(node, found)


def log_sigmoid(x: Tensor) -> Tensor:
    """log(1 / (1 + exp(-x))). Saves x."""
    node = record("LogSigmoidBackward", (x,), (x,), lambda g, x: unary("log_sigmoid_backward", x))
    return attach(node, unary("log_sigmoid_forward", x))
