"""The loss in chunks of tokens, as torchtune computes it (torchtune 0.6.1).

The output layer runs on eight chunks one after the other (modules/transformer.py, `chunked_output`), and so does the
cross-entropy, which is what converts logits to float32 (modules/loss/ce_chunked_output_loss.py, `CEWithChunkedOutputLoss`). All
logits are there in the model's own type while it runs, and their log-probabilities in float32 until backward has used them.
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.layout import parts
from estimator.tape.loss import cross_entropy
from estimator.tape.pointwise import add_, add_scalar, to
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import reshape, split

CHUNKS = 8
"""`num_output_chunks`."""


def chunks(x: Tensor) -> list[Tensor]:
    """`x.chunk(8, dim=1)`: views of [batch, tokens / 8, ...], rounded up, the last one shorter."""
    tokens = x.shape[1]
    return split(x, parts(tokens, -(-tokens // CHUNKS)), 1)


def chunked_loss(logits: list[Tensor], ids: Tensor) -> Tensor:
    """The mean cross-entropy of logits, in chunks, against the next tokens."""
    labels = empty(ids.tape, ids.shape, dtypes.int64, "hstack")
    compared = empty(labels.tape, labels.shape, dtypes.bool_, "ne")
    count = empty(labels.tape, (), dtypes.int64, "sum")
    del compared
    targets = [reshape(chunk, (-1,)) for chunk in chunks(labels)]
    flat = [reshape(chunk, (-1, chunk.shape[-1])) for chunk in logits]
    total: Tensor | None = None
    for rows, target in zip(flat, targets, strict=True):
        if total is None:
            total = add_scalar(cross_entropy(to(rows, dtypes.float32), target))
        else:
            total = add_(total, cross_entropy(to(rows, dtypes.float32), target))
    assert total is not None
    node = record("DivBackward", (total,), (count,), lambda g, count: unary("div", g))
    return attach(node, unary("div", total))
