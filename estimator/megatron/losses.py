"""Cross-entropy over a vocabulary that tensor-parallel ranks share. Logits are [tokens, sequences, rows of the vocabulary].

`vocab_parallel` is Megatron-Core's own (core/tensor_parallel/cross_entropy.py), `compiled` its fusion, whose parts torch compiles
(`--cross-entropy-loss-fusion`; core/fusions/fused_cross_entropy.py), `fused` Transformer Engine's kernel
(`--cross-entropy-loss-fusion --cross-entropy-fusion-impl te`; pytorch/triton/cross_entropy.py).
"""

from __future__ import annotations

from collections.abc import Callable

from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.collectives import Group, all_reduce
from estimator.tape.pointwise import add_scalar
from estimator.tape.tensor import Tensor, empty, moved, unary

Loss = Callable[[Tensor, Tensor, Group], Tensor]
"""(logits, labels, tensor-parallel ranks) -> the loss of each token, [tokens, sequences] in float32."""


def vocab_parallel(logits: Tensor, labels: Tensor, ranks: Group) -> Tensor:
    """Works in float32, in place on a copy of the logits, which becomes the softmax and in backward the gradient.

    Saves the softmax, and of the labels which are another rank's and their place among this one's.
    """
    return _vocab_parallel(logits, labels, ranks, _vocab_parallel_backward)


def _vocab_parallel(logits: Tensor, labels: Tensor, ranks: Group, backward: Callable[..., Tensor]) -> Tensor:
    tape = logits.tape
    node = record("VocabParallelCrossEntropy", (logits,), (), backward)
    softmax = unary("_to_copy", logits, dtypes.float32)
    largest = all_reduce(empty(tape, labels.shape, dtypes.float32, "max"), ranks)
    mask = empty(tape, labels.shape, dtypes.bool_, "or")
    masked = add_scalar(unary("clone", labels))
    predicted = all_reduce(empty(tape, labels.shape, dtypes.float32, "index"), ranks)
    total = all_reduce(empty(tape, labels.shape, dtypes.float32, "sum"), ranks)
    out = empty(tape, labels.shape, dtypes.float32, "sub")
    for operation, times in (("max", 1), ("sub_", 2), ("exp_", 2), ("sum", 1), ("div_", 2)):
        moved(operation, *[softmax] * times)
    if node is not None:
        node.save((softmax, mask, masked))
    del largest, predicted, total
    return attach(node, out)


def _vocab_parallel_backward(g: Tensor, softmax: Tensor, *_: Tensor) -> Tensor:
    moved("mul_", softmax, softmax)
    return softmax


def compiled(logits: Tensor, labels: Tensor, ranks: Group) -> Tensor:
    """The same operations, in compiled parts, and the same that is saved.

    In forward the parts write where the plain ones do. In backward they do not: `softmax[rows, labels] -= 1` is made functional
    on a view of what the part was given, so that torch's compiler gives it a buffer of its own, as large as the softmax, beside
    the gradient in the logits' type, which comes out of the same part (tests/megatron/test_compiled_loss.py asks the compiler).
    """
    return _vocab_parallel(logits, labels, ranks, _compiled_backward)


def _compiled_backward(g: Tensor, softmax: Tensor, *_: Tensor) -> Tensor:
    less_labels = unary("clone", softmax)
    gradient = unary("_to_copy", less_labels, dtypes.bfloat16)
    moved("mul_", softmax)
    return gradient


def fused(logits: Tensor, labels: Tensor, ranks: Group) -> Tensor:
    """Writes the gradient over the logits in forward, and saves them; in addition per token three numbers of every rank."""
    tape, (tokens, sequences) = logits.tape, labels.shape
    node = record("FusedCrossEntropy", (logits,), (logits,), _fused_backward)
    losses = empty(tape, (tokens, sequences), dtypes.float32, "cross_entropy")
    moved("cross_entropy", logits, logits, logits)  # read for the sums, then read and written
    own = empty(tape, (3 * tokens * sequences,), dtypes.float32, "cross_entropy")
    if ranks.size > 1:
        every = empty(tape, (3 * tokens * sequences * ranks.size,), dtypes.float32, "all_gather")
        tape.communicate("all_gather", ranks.name, ranks.size, every.nbytes)
        del every
    del own
    return attach(node, losses)


def _fused_backward(g: Tensor, logits: Tensor) -> Tensor:
    """What came in is no one, by which the gradient would be left as it is (`cross_entropy_backward`)."""
    moved("cross_entropy_backward", logits, logits)
    return logits


LOSSES: dict[str, Loss] = {"eager": vocab_parallel, "compiled": compiled, "fused": fused}
"""By a job's `loss`."""
