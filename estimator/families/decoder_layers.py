"""The shapes of a decoder's layers: where norms and sums stand around attention and the feed-forward layer.

After the `...DecoderLayer` classes of transformers' modeling files (5.23). A layer is called with hidden states and with what all
layers share: the rotary embedding's tables, the mask, the positions. Its attention gets all of that but the positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.families.build import Builder
from estimator.families.modules import Join, Module
from estimator.families.spec import DecoderSpec
from estimator.tape.pointwise import add, dropout, mul_scalar
from estimator.tape.tensor import Tensor

SelfAttention = Callable[..., tuple[Tensor, Tensor | None]]
"""(normalised hidden states, what rotates them, the mask) -> what tokens get, and the weights."""
MakeNorm = Callable[[str, int], Module]
"""(its name, its size) -> a norm."""
Merge = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(what attention gave, what the feed-forward layer gave, the layer's input) -> its output."""


def added(out: Tensor, residual: Tensor) -> Tensor:
    """A join as it is without anything else."""
    return add(residual, out)


def scaled(out: Tensor, residual: Tensor) -> Tensor:
    """A join that multiplies a block's output by a number (`residual_multiplier`)."""
    return add(residual, mul_scalar(out))


def dropping(build: Builder, p: float) -> Join:
    """A join with dropout of a block's output."""
    p = p if build.training else 0.0
    return lambda out, residual: add(residual, dropout(out, p))


class Alone:
    """A mixer in the place of attention, which takes nothing that layers share and returns no weights."""

    positions = "layer"

    def __init__(self, mixer: Module):
        self.mixer = mixer

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> tuple[Tensor, None]:
        return self.mixer(hidden), None


class PreNorm:
    """A norm before each of the two blocks (`LlamaDecoderLayer`).

    `norm`: makes the norms, called `names`; without it the job's RMS norms. `join`: adds a block's input to its output; without
    it as the job has that done.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        build: Builder,
        attention: SelfAttention,
        mlp: Callable[[Tensor], Tensor],
        norm: MakeNorm | None = None,
        join: Join | None = None,
        names: tuple[str, str] = ("input_layernorm", "post_attention_layernorm"),
    ):
        norm, size = norm or build.rms_norm, spec.hidden_size
        self.self_attn: Any = attention
        self.mlp = mlp
        self.input_layernorm, self.post_attention_layernorm = (norm(name, size) for name in names)
        self.attention_join = join or build.join("mh_adapter", size)
        self.output_join = join or build.join("output_adapter", size)

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, *shared[:-1])
        out = self.attention_join(out, residual)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        return self.output_join(out, residual)


class PostNorm:
    """A norm after each of the two blocks, before its input is added (`Olmo2DecoderLayer`)."""

    def __init__(
        self,
        spec: DecoderSpec,
        build: Builder,
        attention: SelfAttention,
        mlp: Callable[[Tensor], Tensor],
        norm: MakeNorm | None = None,
    ):
        norm = norm or build.rms_norm
        self.self_attn, self.mlp = attention, mlp
        self.post_attention_layernorm = norm("post_attention_layernorm", spec.hidden_size)
        self.post_feedforward_layernorm = norm("post_feedforward_layernorm", spec.hidden_size)

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        residual = hidden
        out, _ = self.self_attn(hidden, *shared[:-1])
        out = self.post_attention_layernorm(out)
        out = add(residual, out)
        residual = out
        out = self.mlp(out)
        out = self.post_feedforward_layernorm(out)
        return add(residual, out)


class Sandwich:
    """A norm before and one after each of the two blocks (`Gemma2DecoderLayer`).

    Families call them by several names: here they are `norms` before and after attention, then before and after the feed-forward
    layer. `join`: adds a block's input to its output.
    """

    def __init__(
        self,
        attention: SelfAttention,
        mlp: Callable[[Tensor], Tensor],
        norms: tuple[Module, Module, Module, Module],
        join: Join = added,
    ):
        self.self_attn, self.mlp, self.join = attention, mlp, join
        self.before_attention, self.after_attention, self.before_mlp, self.after_mlp = norms

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        residual = hidden
        out = self.before_attention(hidden)
        out, _ = self.self_attn(out, *shared[:-1])
        out = self.after_attention(out)
        out = self.join(out, residual)
        residual = out
        out = self.before_mlp(out)
        out = self.mlp(out)
        out = self.after_mlp(out)
        return self.join(out, residual)


def attention_to_residual(attended: Tensor, fed: Tensor, residual: Tensor) -> Tensor:
    """The input and attention first, then the feed-forward layer (`CohereDecoderLayer`)."""
    return add(add(residual, attended), fed)


class Parallel:
    """Attention and the feed-forward layer side by side, behind one norm (`PhiDecoderLayer`).

    `drops`: dropout of what attention and of what the feed-forward layer gives. `merge`: sums both and the input.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        build: Builder,
        attention: SelfAttention,
        mlp: Callable[[Tensor], Tensor],
        norm: MakeNorm | None = None,
        drops: tuple[float, float] = (0.0, 0.0),
        merge: Merge = attention_to_residual,
    ):
        self.self_attn, self.mlp, self.merge = attention, mlp, merge
        self.input_layernorm = (norm or build.rms_norm)("input_layernorm", spec.hidden_size)
        self.attention_dropout, self.mlp_dropout = drops if build.training else (0.0, 0.0)

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        residual = hidden
        normed = self.input_layernorm(hidden)
        attended, _ = self.self_attn(normed, *shared[:-1])
        attended = dropout(attended, self.attention_dropout)
        fed = dropout(self.mlp(normed), self.mlp_dropout)
        return self.merge(attended, fed, residual)
