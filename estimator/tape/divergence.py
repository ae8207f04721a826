"""How far a student's words are from a teacher's, from both hidden states, a tile of both logits at a time.

TRL's `ChunkedDivergenceFunction` (1.16, trl/kernels/chunked_divergence.py) on CUDA: reverse KL (`beta` 1.0), without autocast.
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.layout import parts
from estimator.tape.logprobs import TOKENS, WORDS, Head
from estimator.tape.pointwise import to
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, binary, empty, unary
from estimator.tape.views import contiguous, narrow

STATISTICS = 9
"""Numbers of each token that tiles are folded into."""


def divergences(student: Tensor, head: Head, teacher: Tensor, other: Head) -> Tensor:
    """The divergence of the student's words from the teacher's for each token, [tokens] in float32, from hidden states
    [tokens, width]. Saves these, both heads and three numbers of each token."""
    tape, tokens = student.tape, student.shape[0]
    given = [student, head.weight, *(() if head.bias is None else (head.bias,))]
    wants = [t.requires_grad for t in given]
    node = record("ChunkedDivergence", given, (), lambda g, hidden, *_: _backward(g, hidden, head, wants))
    sums = [empty(tape, (tokens,), dtypes.float32, "zeros") for _ in range(STATISTICS)]
    tiles = _tiles(tape, tokens)
    for rows in parts(tokens, TOKENS):
        for model, hidden in ((head, student), (other, teacher)):
            tape.multiply(rows, model.weight.shape[0], model.weight.shape[1], hidden.dtype)
            del hidden
        logs = [_log_z(narrow(sums[0], 0, rows)) for _ in range(2)]
    logs = [_log_z(sums[0]) for _ in range(2)]
    entropy = binary("sub", logs[0], unary("div", sums[1]))
    out = attach(node, binary("add", binary("sub", unary("div", sums[0]), logs[0]), logs[1]))
    if node is not None:
        node.save(tuple([t.detach() for t in (*given, teacher, other.weight, *logs, out)]))
    del sums, tiles, logs, entropy
    return out


def _backward(g: Tensor, hidden: Tensor, head: Head, wants: list[bool]) -> list[Gradient]:
    tape, tokens = hidden.tape, hidden.shape[0]
    given = [hidden, head.weight, *(() if head.bias is None else (head.bias,))]
    each = contiguous(g)
    wide = [unary("zeros", t, dtypes.float32) if want else None for t, want in zip(given, wants, strict=True)]
    tiles = _tiles(tape, tokens)
    part: Tensor | None = None
    for rows in parts(tokens, TOKENS):
        for first in range(0, head.weight.shape[0], WORDS):
            columns = min(WORDS, head.weight.shape[0] - first)
            part = to(narrow(narrow(tiles[0], 0, rows), 1, columns), hidden.dtype)
        tape.multiply(rows, head.weight.shape[0], head.weight.shape[1], hidden.dtype, 2 + sum(wants[:2]))
    found = [None if grad is None else to(grad, t.dtype) for grad, t in zip(wide, given, strict=True)]
    del each, wide, tiles, part
    return found


def _tiles(tape: Tape, tokens: int) -> list[Tensor]:
    return [empty(tape, (min(tokens, TOKENS), WORDS), dtypes.float32, "logits") for _ in range(2)]


def _log_z(x: Tensor) -> Tensor:
    return binary("add", x, unary("log", x))
