"""Kernels that do in one what eager modules do in many operations: what each allocates, saves and writes in place.

The Triton kernels of Liger (linkedin/Liger-Kernel v0.8.2, src/liger_kernel/ops) and the "fast kernels" of fms-acceleration
(foundation-model-stack/fms-acceleration, plugins/fused-ops-and-kernels), which come from Unsloth.
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autocast import cast
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.layout import parts
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, alias, binary, empty, moved, output, unary
from estimator.tape.views import contiguous, narrow, reshape, transpose

MULTIPROCESSORS = 132
"""Partial sums of a weight's gradient, one row per multiprocessor: an H100's number (an A100 has 108)."""
LARGEST_BLOCK = 65536
"""Elements of a row that one program of Unsloth's cross-entropy reduces (`MAX_FUSED_SIZE`)."""


def rms_norm(x: Tensor, weight: Tensor, weight_gradient: bool) -> Tensor:
    """One kernel. Saves x, the weight and per row a float32 reciprocal; the input's gradient is written over the output's.

    `weight_gradient`: Liger sums it up in float32; Unsloth has none.
    """
    rows = reshape(x.detach(), (-1, x.shape[-1]))
    out = output("rms_norm", (x,), x.shape, x.dtype)
    reciprocals = empty(x.tape, rows.shape[:1], dtypes.float32, "rms_norm")

    def backward(g: Tensor, x: Tensor, weight: Tensor, _: Tensor) -> tuple[Gradient, Gradient]:
        moved("rms_norm_backward", g, x, g)
        if not weight_gradient:
            return g, None
        partial = empty(g.tape, (MULTIPROCESSORS, *weight.shape), dtypes.float32, "rms_norm_backward")
        summed = empty(g.tape, weight.shape, dtypes.float32, "sum")
        del partial
        return g, to(summed, weight.dtype)

    return attach(record("FusedRMSNorm", (x, weight), (x, weight, reciprocals), backward), out)


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding of [batch, heads, tokens, size] in place; so is its gradient."""
    return _rotated(q, cos, sin), _rotated(k, cos, sin)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    node = record("FusedRotary", (x,), (cos, sin), lambda g, *_: transpose(contiguous(transpose(g, 1, 2)), 1, 2))
    by_token = contiguous(transpose(x, 1, 2))
    out = transpose(by_token, 1, 2)
    moved("rotate", out, out)
    return attach(node, alias(out, out.shape, out.strides))


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up in one kernel. Saves both; their gradients are written over them."""
    node = record("FusedSiluMul", (gate, up), (gate, up), _silu_mul_backward)
    return attach(node, binary("silu_mul", gate, up))


def _silu_mul_backward(g: Tensor, gate: Tensor, up: Tensor) -> tuple[Gradient, Gradient]:
    moved("silu_mul_backward", g, gate, up, gate, up)
    return gate, up


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of [tokens, vocabulary]. Saves the logits, whose gradient is written over them."""
    tape, (tokens, vocabulary) = logits.tape, logits.shape
    losses = empty(tape, (tokens,), dtypes.float32, "cross_entropy")
    chunks = -(-vocabulary // LARGEST_BLOCK)
    sums = empty(tape, (tokens,) if chunks == 1 else (tokens, chunks), dtypes.float32, "cross_entropy")
    if chunks > 1:
        sums = empty(tape, (tokens,), dtypes.float32, "logsumexp")
    node = record("FusedCrossEntropy", (logits,), (logits, sums, target), _cross_entropy_backward)
    moved("cross_entropy", logits)
    return _mean(attach(node, losses), target)


def flash_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean of flash-attn's cross-entropy of [tokens, vocabulary], backward in place (flash_attn/ops/triton/cross_entropy.py).

    Makes for each token the loss, the sum of exponentials and a second loss, in float32. Saves the logits, whose gradient is
    written over them.
    """
    tape, (tokens, _) = logits.tape, logits.shape
    losses, sums, second = (empty(tape, (tokens,), dtypes.float32, "cross_entropy") for _ in range(3))
    node = record("FlashCrossEntropy", (logits,), (logits, sums, target), _cross_entropy_backward)
    moved("cross_entropy", logits)
    del second
    return _mean(attach(node, losses), target)


def _cross_entropy_backward(g: Tensor, logits: Tensor, *_: Tensor) -> Tensor:
    moved("cross_entropy_backward", logits, logits)
    return logits


def _mean(losses: Tensor, target: Tensor) -> Tensor:
    """losses.sum() / count_nonzero(target != -100)."""
    tape, shape = losses.tape, losses.shape
    counted = empty(tape, target.shape, dtypes.bool_, "ne")
    count = empty(tape, (), dtypes.int64, "count_nonzero")
    del counted
    node = record("SumBackward", (losses,), (), lambda g: alias(g, shape, (0,)))
    total = attach(node, empty(tape, (), losses.dtype, "sum"))
    node = record("DivBackward", (total,), (count,), lambda g, count: unary("div", g))
    return attach(node, unary("div", total))


def linear_cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor, in_float32: bool) -> Tensor:
    """Logits and their mean cross-entropy, a chunk of tokens at a time; all gradients are there when forward ends.

    `hidden` [tokens, width], `weight` [vocabulary, width]. Saves the gradients of both. A chunk holds as many logits as
    the hidden states have numbers, rounded up to a power of two of tokens. `in_float32`: a chunk is converted to float32
    and back, and scaled (fms-acceleration's copy of an older Liger, fused_linear_cross_entropy_loss.py); Liger itself
    works in the logits' own type and makes the weight's gradient of a chunk in float32 too.
    """
    tape, (tokens, width), vocabulary = hidden.tape, hidden.shape, weight.shape[0]
    grad_hidden = unary("zeros_like", hidden)
    grad_weight = unary("zeros_like", weight) if weight.requires_grad else None
    losses = empty(tape, (tokens,), dtypes.float32, "zeros")
    size = 1 << (-(-tokens // -(-vocabulary // width)) - 1).bit_length()
    scaled: Tensor | None = None
    for count in parts(tokens, size):
        rows = narrow(hidden.detach(), 0, count)
        logits = _times(cast(rows), cast(weight.detach()))
        if in_float32:
            half = logits.dtype
            logits = to(logits, dtypes.float32)
            logits = to(logits, half)
            scaled = unary("mul", logits)
        moved("cross_entropy", logits, logits, logits)
        part = _times(logits if scaled is None else scaled, transpose(cast(weight.detach()), 0, 1))
        del part
        if grad_weight is None:
            continue
        if in_float32 or grad_weight.dtype is not logits.dtype:  # added up by the product itself
            part = cast(rows)
            tape.multiply(vocabulary, width, part.shape[0], part.dtype)
        else:
            part = _times(transpose(logits, 0, 1), transpose(rows, 0, 1))
            part = to(part, dtypes.float32)
        del part
    del logits, rows, scaled
    saved = (grad_hidden, grad_weight)
    node = record("FusedLinearCrossEntropy", (hidden, weight), saved, lambda g, *gradients: gradients)
    out = empty(tape, (), dtypes.float32, "sum")
    del grad_hidden, grad_weight, losses
    return attach(node, out)


def _times(a: Tensor, b: Tensor) -> Tensor:
    """a b^T."""
    (m, k), n = a.shape, b.shape[0]
    a.tape.multiply(m, n, k, a.dtype)
    return empty(a.tape, (m, n), a.dtype, "mm")
