"""Attention with a bias that is learned for buckets of relative positions, as T5 has it.

The first layer of a stack makes the bias, and the others are handed it; or each makes its own. After transformers' modeling_t5.py
and modeling_umt5.py (5.23).
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import permute, reshape, transpose, unsqueeze


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a layer of such attention needs to know of the model."""

    hidden: int
    heads: int
    head: int
    buckets: int
    dropout: float


class RelativeAttention:
    """Attention of a sequence to itself or to another (`T5Attention`).

    `causal`: a decoder's to itself. `biased`: this layer makes the bias; others that are handed none take zeros. `shares`: it
    hands its bias to the next.
    """

    def __init__(self, name: str, causal: bool, biased: bool, sizes: Sizes, build: Builder, shares: bool = True):
        inner = sizes.heads * sizes.head
        self.sizes, self.causal, self.shares, self.recomputes = sizes, causal, shares, build.recomputes
        self.q = build.linear(name + ".q", sizes.hidden, inner)
        self.k = build.linear(name + ".k", sizes.hidden, inner)
        self.v = build.linear(name + ".v", sizes.hidden, inner)
        self.o = build.linear(name + ".o", inner, sizes.hidden)
        table = name + ".relative_attention_bias"
        self.relative_bias = build.embedding(table, sizes.buckets, sizes.heads) if biased else None
        self.attend = Attention(build.attention, False, sizes.dropout, cast_back=False, causal=causal)

    def __call__(
        self, hidden: Tensor, other: Tensor, mask: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The output, the bias that the next layer gets, and the weights where the implementation returns them."""
        batch, tokens, _ = hidden.shape
        length, heads = other.shape[1], (self.sizes.heads, self.sizes.head)
        q = transpose(reshape(self.q(hidden), (batch, tokens, *heads)), 1, 2)
        k = transpose(reshape(self.k(other), (batch, length, *heads)), 1, 2)
        v = transpose(reshape(self.v(other), (batch, length, *heads)), 1, 2)
        if bias is None:
            bias = self._bias(hidden.tape, tokens, length, q.dtype)
        out, weights = self.attend(q, k, v, mask, bias)
        out = reshape(out, (batch, tokens, -1))
        out = self.o(out)
        return out, bias if self.shares else None, weights

    def _bias(self, tape: Tape, tokens: int, length: int, dtype: DType) -> Tensor:
        """One number for each head and pair of positions. Where layers are recomputed, the zeros ask for a gradient, too."""
        if self.relative_bias is None:
            zeros = empty(tape, (1, self.sizes.heads, tokens, length), dtype, "zeros")
            zeros.requires_grad = self.recomputes and self.shares
            return zeros
        places = [empty(tape, (size,), dtypes.int64, "arange") for size in (tokens, length)]
        relative = empty(tape, (tokens, length), dtypes.int64, "sub")
        buckets = in_buckets(relative, self.causal, holds=not self.shares)
        values = self.relative_bias(buckets)
        del places
        return unsqueeze(permute(values, (2, 0, 1)), 0)


def in_buckets(relative: Tensor, causal: bool, holds: bool = False, late: bool = False) -> Tensor:
    """The bucket of each relative position (`_relative_position_bucket`): exact when near, by the logarithm when far.
    `holds`: the logarithms live to the end (UMT5, WavLM). `late`: they are made whole after all that is added, and nothing is
    added to the bucket of a position's side (WavLM)."""
    tape, shape = relative.tape, relative.shape

    def made(operation: str, dtype: DType = dtypes.int64) -> Tensor:
        return empty(tape, shape, dtype, operation)

    if causal:
        zeros = made("zeros_like")
        least = made("minimum")
        del zeros
        distance = made("neg")
        del least
    else:
        later = made("gt", dtypes.bool_)
        wide = made("_to_copy")
        del later
        side = made("mul")
        del wide
        buckets = side if late else made("add")
        del side
        distance = made("abs")
    near = made("lt", dtypes.bool_)
    far = made("_to_copy", dtypes.float32)
    for operation in ("div", "log", "div", "mul"):
        far = made(operation, dtypes.float32)
    _ratio = far if holds else None
    if late:
        far = made("add", dtypes.float32)
        far = made("_to_copy")
    else:
        far = made("_to_copy")
        far = made("add")
    most = made("full_like")
    far = made("minimum")
    del most
    chosen = made("where")
    if not causal:
        del chosen, near, far, distance
        return buckets
    buckets = made("add")
    del chosen, near, far, distance
    return buckets
