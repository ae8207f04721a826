"""Building blocks as transformers' own (eager) modules run them.

A module never rebinds its argument: torch's `Module.__call__` holds the arguments until `forward` returns, and what is
held is not freed.
"""

from __future__ import annotations

from collections.abc import Callable

from estimator.tape import dtypes, loss
from estimator.tape import normalization as norms
from estimator.tape.convolution import convolution
from estimator.tape.float8 import Scaling, scaled_linear
from estimator.tape.matmul import conv1d, linear, transposed
from estimator.tape.pointwise import (
    add,
    add_scalar,
    gelu,
    mean_last,
    mul,
    mul_scalar,
    neg,
    pow_scalar,
    relu,
    rsqrt,
    sigmoid,
    silu,
    tanh,
    to,
)
from estimator.tape.tape import Storage, Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, narrow, unsqueeze

Module = Callable[[Tensor], Tensor]
Join = Callable[[Tensor, Tensor], Tensor]
"""(a block's output, its input) -> what the next block gets."""


class Linear:
    """`torch.nn.Linear`: weight [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Float8Linear(Linear):
    """torchao's (float8/float8_linear.py): its products are in fp8, its bias is added afterwards."""

    def __init__(self, weight: Tensor, bias: Tensor | None, scaling: Scaling):
        super().__init__(weight, bias)
        self.scaling = scaling

    def __call__(self, x: Tensor) -> Tensor:
        context = x.tape.autocast
        out = scaled_linear(x if context is None else to(x, context.dtype), transposed(self.weight), self.scaling)
        return out if self.bias is None else add(out, to(self.bias, out.dtype))


class AdaptedLinear(Linear):
    """One with an adapter, which `run`s it."""

    def __init__(self, own: Linear, run: Module):
        super().__init__(own.weight, own.bias)
        self.run = run

    def __call__(self, x: Tensor) -> Tensor:
        return self.run(x)


class Conv1D:
    """transformers' `Conv1D`, a linear layer with its weight the other way round: [in, out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return conv1d(x, self.weight, self.bias)


class Convolution:
    """`torch.nn.Conv1d` or `Conv2d`: weight [out, in / groups, *kernel]. `require_grad` as of `Embedding`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, stride: int, padding: int, require_grad: bool):
        self.weight, self.bias, self.stride, self.padding = weight, bias, stride, padding
        self.require_grad = require_grad

    def __call__(self, x: Tensor) -> Tensor:
        out = convolution(x, self.weight, self.bias, self.stride, self.padding)
        if self.require_grad:  # without a tape, too, where autocast then keeps its cast as a weight's
            out.requires_grad = True
        return out


class Embedding:
    """`torch.nn.Embedding`, times `scale` where there is one, a tensor of one number.

    `require_grad` is transformers' hook that makes its output require gradients.
    """

    def __init__(self, weight: Tensor, require_grad: bool = False, scale: Tensor | None = None):
        self.weight, self.require_grad, self.scale = weight, require_grad, scale
        self.given: Tensor | None = None
        """Embeddings that the model is called with in the place of ids."""

    def __call__(self, ids: Tensor) -> Tensor:
        if self.given is not None:
            return self.given
        out = loss.embedding(self.weight, ids)
        if self.scale is not None:
            out = mul(out, to(self.scale, self.weight.dtype))
        if self.require_grad:  # without a tape, too, where autocast then keeps its cast as a weight's
            out.requires_grad = True
        return out


class SavedEmbedding(Embedding):
    """One of which a `copy` is trained instead, with a `scale` of its own; what is tied to its weight stays so."""

    def __init__(self, own: Embedding, copy: Tensor, scale: Tensor | None):
        super().__init__(own.weight, scale=own.scale)
        self.copy = Embedding(copy, own.require_grad, scale)

    def __call__(self, ids: Tensor) -> Tensor:
        return self.copy(ids)


class AdaptedEmbedding(Embedding):
    """One with an adapter, which `run`s it."""

    def __init__(self, own: Embedding, run: Module):
        super().__init__(own.weight, own.require_grad, own.scale)
        self.run = run

    def __call__(self, ids: Tensor) -> Tensor:
        return self.run(ids)


class RMSNorm:
    """Root-mean-square normalisation, written out in float32 as transformers' eager modules do."""

    def __init__(self, weight: Tensor):
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        out = to(x, dtypes.float32)
        variance = mean_last(pow_scalar(out))
        out = mul(out, rsqrt(add_scalar(variance)))
        return mul(self.weight, to(out, x.dtype))


class LayerNorm:
    """`torch.nn.LayerNorm`."""

    def __init__(self, weight: Tensor | None, bias: Tensor | None):
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return norms.layer_norm(x, self.weight, self.bias)


class Residual:
    """The sum of a block's output and its input, and the norm of that where there is one."""

    def __init__(self, norm: Module | None = None):
        self.norm = norm

    def __call__(self, out: Tensor, residual: Tensor) -> Tensor:
        return add(residual, out) if self.norm is None else self.norm(add(out, residual))


def gelu_new(x: Tensor) -> Tensor:
    """GPT-2's GELU, in Python: seven operations, of which most save a tensor."""
    return mul(mul_scalar(x), add_scalar(tanh(mul_scalar(add(x, mul_scalar(pow_scalar(x)))))))


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)², in two operations."""
    out = relu(x)
    return pow_scalar(out)


def gelu_fast(x: Tensor) -> Tensor:
    """GELU by its tanh approximation with products instead of a power: eight operations (`FastGELUActivation`)."""
    return mul(mul_scalar(x), add_scalar(tanh(mul(mul_scalar(x), add_scalar(mul(mul_scalar(x), x))))))


def quick_gelu(x: Tensor) -> Tensor:
    """CLIP's GELU, x * sigmoid(1.702 x), in Python."""
    return mul(x, sigmoid(mul_scalar(x)))


ACTIVATIONS: dict[str, Module] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_pytorch_tanh": gelu,
    "gelu_new": gelu_new,
    "gelu_fast": gelu_fast,
    "quick_gelu": quick_gelu,
    "relu": relu,
    "relu2": relu_squared,
}
"""By the name in a model's `hidden_act`."""


def token_positions(tape: Tape, tokens: int) -> Tensor:
    """The positions of tokens, [1, tokens]: counted up, or those that the batch holds, as that of packed documents does.

    While a model generates, it gets those of each sequence.
    """
    if tape.positions_given or tape.generating:
        rows = tape.generating.sequences if tape.generating else tape.rows
        return Tensor(Storage(tape, 0, "position_ids", filled=False), (rows, tokens), dtypes.int64)
    return add_scalar(empty(tape, (1, tokens), dtypes.int64, "arange"))


def rotary_table(tape: Tape, tokens: int, size: int, dtype: dtypes.DType) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, [1, tokens, size] each, shared by every layer; of each sequence of its own while
    a model generates, or where the batch says so."""
    shape = (tape.generating.sequences if tape.generating else tape.rows, tokens, size)
    return empty(tape, shape, dtype, "cos"), empty(tape, shape, dtype, "sin")


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the rotary position embedding to queries and keys, [batch, heads, tokens, size]."""
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    rotated_q = rotated(q, c, s)
    rotated_k = rotated(k, c, s)
    return rotated_q, rotated_k


def rotated(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """x cos + rotate_half(x) sin."""
    return add(mul(x, c), mul(rotate_half(x), s))


def rotate_part(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the rotary position embedding to the first elements of each head, as many as the table has; the others pass
    unchanged."""
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    size, rest = c.shape[-1], q.shape[-1] - c.shape[-1]
    turned_q, kept_q = narrow(q, -1, size), narrow(q, -1, rest)
    turned_k, kept_k = narrow(k, -1, size), narrow(k, -1, rest)
    rotated_q = add(mul(turned_q, c), mul(rotate_half(turned_q), s))
    rotated_k = add(mul(turned_k, c), mul(rotate_half(turned_k), s))
    rotated_q = cat((rotated_q, kept_q), -1)
    rotated_k = cat((rotated_k, kept_k), -1)
    return rotated_q, rotated_k


def rotate_half(x: Tensor) -> Tensor:
    """The second half of the last dimension, negated, before the first."""
    half = x.shape[-1] // 2
    first, second = narrow(x, -1, half), narrow(x, -1, half)
    return cat((neg(second), first), -1)
