"""Building blocks as transformers' own (eager) modules run them.

A module never rebinds its argument: torch's `Module.__call__` holds the arguments until `forward` returns, and what is
held is not freed.
"""

from __future__ import annotations

from collections.abc import Callable

from estimator import dtypes
from estimator.tape import loss
from estimator.tape import normalization as norms
from estimator.tape.matmul import conv1d, linear
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
    silu,
    tanh,
    to,
)
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, narrow, unsqueeze

Module = Callable[[Tensor], Tensor]


class Linear:
    """`torch.nn.Linear`: weight [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Conv1D:
    """transformers' `Conv1D`, a linear layer with its weight the other way round: [in, out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return conv1d(x, self.weight, self.bias)


class Embedding:
    """`torch.nn.Embedding`. `require_grad` is transformers' hook that makes its output require gradients."""

    def __init__(self, weight: Tensor, require_grad: bool = False):
        self.weight, self.require_grad = weight, require_grad

    def __call__(self, ids: Tensor) -> Tensor:
        out = loss.embedding(self.weight, ids)
        if self.require_grad and out.tape.grad_enabled:
            out.requires_grad = True
        return out


class RMSNorm:
    """Root-mean-square normalisation, written out in float32 as transformers' eager modules do."""

    def __init__(self, weight: Tensor):
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        wide = to(x, dtypes.float32)
        variance = mean_last(pow_scalar(wide))
        normalized = mul(wide, rsqrt(add_scalar(variance)))
        return mul(self.weight, to(normalized, x.dtype))


class LayerNorm:
    """`torch.nn.LayerNorm`."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return norms.layer_norm(x, self.weight, self.bias)


def gelu_new(x: Tensor) -> Tensor:
    """GPT-2's GELU, in Python: seven operations, of which most save a tensor."""
    return mul(mul_scalar(x), add_scalar(tanh(mul_scalar(add(x, mul_scalar(pow_scalar(x)))))))


ACTIVATIONS: dict[str, Module] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_pytorch_tanh": gelu,
    "gelu_new": gelu_new,
    "relu": relu,
}
"""By the name in a model's `hidden_act`."""


def rotary_table(tape: Tape, tokens: int, size: int, dtype: dtypes.DType) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, [1, tokens, size] each, shared by every layer."""
    shape = (1, tokens, size)
    return empty(tape, shape, dtype, "cos"), empty(tape, shape, dtype, "sin")


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the rotary position embedding to queries and keys, [batch, heads, tokens, size]."""
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    rotated_q = add(mul(q, c), mul(_rotate_half(q), s))
    rotated_k = add(mul(k, c), mul(_rotate_half(k), s))
    return rotated_q, rotated_k


def _rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    first, second = narrow(x, -1, half), narrow(x, -1, half)
    return cat((neg(second), first), -1)
