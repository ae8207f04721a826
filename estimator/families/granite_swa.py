"""Granite with sliding windows and sinks: what each head gives is scaled by how much of its softmax a learned number leaves it.

After transformers' modeling_granite_swa.py (5.23). Attention by hand only.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm, SelfAttention, scaled
from estimator.families.each_layer import check_each_named
from estimator.families.feed_forward import GatedMLP
from estimator.families.granite import GraniteSpec, ScaledLM
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import Head
from estimator.families.llama import LlamaSpec
from estimator.families.rotary import frequencies
from estimator.families.rotations import unrotated
from estimator.families.spec import Size
from estimator.families.windows import FULL, SLIDING, LayerType, WindowedSpec
from estimator.tape import dtypes
from estimator.tape.math_attention import repeat_heads
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, dropout, mul, mul_scalar, sigmoid, softmax, sub, to
from estimator.tape.tempered import logsumexp
from estimator.tape.tensor import Tensor
from estimator.tape.views import contiguous, reshape, transpose, unsqueeze

Kind = tuple[LayerType, bool]
"""What a layer sees, and whether it rotates."""


class SinkedSpec(WindowedSpec):
    """The first layer of each period sees everything. `layer_rope_theta` has the base of each layer's rotary frequencies, and 0
    for a layer that rotates nothing; without it all layers have one."""

    default_period = 4
    seeing_all = 0

    sliding_window: Size = 128
    layer_rope_theta: tuple[Annotated[float, Field(ge=0)], ...] | None = None

    @property
    def thetas(self) -> tuple[float, ...]:
        """The base of each layer, a stand-in where all have that of the model."""
        return self.layer_rope_theta or (1.0,) * self.num_hidden_layers

    @property
    def layers(self) -> tuple[Kind, ...]:
        """The kind of each layer."""
        return tuple([(sees, base > 0) for sees, base in zip(self.kinds, self.thetas, strict=True)])

    @property
    def bases(self) -> dict[LayerType, set[float]]:
        """The bases of the layers of each kind that rotate."""
        found: dict[LayerType, set[float]] = {FULL: set(), SLIDING: set()}
        for sees, base in zip(self.kinds, self.thetas, strict=True):
            found[sees] |= {base} - {0.0}
        return found

    @model_validator(mode="after")
    def _one_base(self) -> Self:
        check_each_named(self.layer_rope_theta, self.num_hidden_layers, "layer_rope_theta")
        if any(len(bases) > 1 for bases in self.bases.values()):
            raise ValueError("layer_rope_theta has several bases for layers that see the same: that is not modelled")
        return self

    def config(self) -> dict[str, Any]:
        bases = self.layer_rope_theta
        return super().config() | {"layer_rope_theta": None if bases is None else [*bases]}


class GraniteSwaSpec(SinkedSpec, GraniteSpec):
    can = Abilities(gguf=True, graph="granite-swa")
    window_pool = "0.5.23"
    attentions = ("eager",)
    cached = tensor_parallel = False
    implementations = ("transformers",)

    max_position_embeddings: Size | None = 8192
    tie_word_embeddings: bool = True


SPECS = {"granite_swa": GraniteSwaSpec}


class AttentionWithSinks:
    """What each head gives is multiplied by a sigmoid, in float32, of its scores' logarithmic sum less its sink."""

    def __init__(self, sinks: Tensor, dropout: float):
        self.sinks, self.dropout = sinks, dropout

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        keys, values = repeat_heads(q, k), repeat_heads(q, v)
        weights = mul_scalar(matmul(q, transpose(keys, 2, 3)))
        if mask is not None:
            weights = add(weights, mask)
        sums = logsumexp(weights)
        scale = sigmoid(to(sub(sums, reshape(self.sinks, (1, -1, 1))), dtypes.float32))
        weights = to(softmax(weights, dtypes.float32), q.dtype)
        weights = dropout(weights, self.dropout)
        out = matmul(weights, values)
        out = mul(out, to(unsqueeze(scale, 3), out.dtype))
        out = contiguous(transpose(out, 1, 2))
        del keys, sums
        return out, weights


class SinkedAttention(GroupedQueryAttention):
    def __init__(self, spec: LlamaSpec, build: Builder, rotates: bool):
        sinks = build.parameter("self_attn.sinks", (spec.num_attention_heads,))
        super().__init__(spec, build, spec.attention_bias, spec.attention_bias, rotate=None if rotates else unrotated)
        self.attend: Any = AttentionWithSinks(sinks, spec.attention_dropout if build.training else 0.0)


def sinked_attention(spec: LlamaSpec, build: Builder, rotates: bool) -> SelfAttention:
    """Attention of a layer, which gets no rotary table where it rotates nothing."""
    attention = SinkedAttention(spec, build, rotates)
    return attention if rotates else lambda hidden, mask: attention(hidden, hidden, hidden, mask)


class RotaryOfBases(Rotary):
    """Frequencies of each base, and those of the whole model, which nothing reads."""

    def __init__(self, spec: SinkedSpec):
        super().__init__(spec.head_dim)
        bases = spec.bases
        self.apart = bool(bases[FULL] and bases[SLIDING] and bases[FULL] != bases[SLIDING])
        self.count = len(bases[FULL] | bases[SLIDING])

    def buffers(self, build: Builder) -> list[Tensor]:
        return [t for _ in range(1 + self.count) for t in frequencies(build, self.size)]

    def tables(self, ids: Tensor, dtype: dtypes.DType) -> dict[LayerType, tuple[Tensor, ...]]:
        made = [self.table(ids.tape, ids.shape[1], dtype) for _ in range(self.count)]
        return dict(zip((FULL, SLIDING), made if self.apart else made * 2, strict=False))


def turns(kind: Kind) -> LayerType | None:
    """Which rotary table a layer gets."""
    sees, rotates = kind
    return sees if rotates else None


def granite_swa(spec: GraniteSwaSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(kind: Kind) -> PreNorm:
        attention = sinked_attention(spec, build, kind[1])
        return PreNorm(spec, build, attention, GatedMLP(spec, build, bias=spec.mlp_bias), join=scaled)

    rotary = RotaryOfBases(spec)
    return Decoder(spec, build, layer, spec.layers, rotary=rotary, embedded=mul_scalar, sees=lambda kind: kind[0], turns=turns)


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: ScaledLM(granite_swa(spec, build), spec, build)}
