"""Cohere's Command R and Command R7B: attention and feed-forward layers side by side, layer norm without biases, written out.

Rotary embeddings turn neighbouring pairs, in float32. In Cohere 2 layers with a sliding window alternate with layers that see
everything and have no position embedding. After transformers' modeling_cohere.py and modeling_cohere2.py (5.23).
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import Parallel
from estimator.families.feed_forward import GatedMLP
from estimator.families.granite import ScaledLM
from estimator.families.grouped_query import GroupedQueryAttention, normed_between
from estimator.families.heads import Head
from estimator.families.rotations import unrotated
from estimator.families.spec import RotaryDecoderSpec, Size
from estimator.families.windows import SLIDING, LayerType, WindowedSpec, layer_types
from estimator.tape import dtypes
from estimator.tape.layout import Shape
from estimator.tape.pointwise import add, add_scalar, mean_last, mul, neg, pow_scalar, rsqrt, sub, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import every_second, reshape, stack_last, unsqueeze


class _Spec(RotaryDecoderSpec):
    """What the specs of Command R and Command R7B have in common."""

    tie_word_embeddings: bool = True
    attention_bias: bool = False

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised."""
        return False


class CohereSpec(_Spec):
    can = Abilities(batches=("padding",), gguf=True, graph="command-r")
    cached = tensor_parallel = True

    max_position_embeddings: Size | None = 8192
    use_qk_norm: bool | None = False

    @property
    def qk_norm(self) -> bool:
        return bool(self.use_qk_norm)


class Cohere2Spec(_Spec, WindowedSpec):
    can = Abilities(gguf=True, graph="command-r7b")
    default_period = 4

    max_position_embeddings: Size | None = 8192
    sliding_window_pattern: Size = 4

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.head_dim != self.hidden_size // self.num_attention_heads:
            raise ValueError(f"head_dim {self.head_dim} is not hidden_size {self.hidden_size} / {self.num_attention_heads} heads")
        return self


SPECS = {"cohere": CohereSpec, "cohere2": Cohere2Spec}


class LayerNorm:
    """Layer norm without a bias, in float32 and by hand: the mean is taken off twice."""

    def __init__(self, build: Builder, name: str, shape: Shape):
        self.weight = build.parameter(name + ".weight", shape)

    def __call__(self, x: Tensor) -> Tensor:
        out = to(x, dtypes.float32)
        mean = mean_last(out)
        variance = mean_last(pow_scalar(sub(out, mean)))
        out = mul(sub(out, mean), rsqrt(add_scalar(variance)))
        out = mul(to(self.weight, dtypes.float32), out)
        return to(out, x.dtype)


def rotate_pairs(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the rotary position embedding to neighbouring pairs of queries and keys, [batch, heads, tokens, size]."""
    wide_q = to(q, dtypes.float32)
    wide_k = to(k, dtypes.float32)
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    rotated_q = add(mul(wide_q, c), mul(_rotate_half(wide_q), s))
    rotated_k = add(mul(wide_k, c), mul(_rotate_half(wide_k), s))
    return to(rotated_q, q.dtype), to(rotated_k, q.dtype)


def _rotate_half(x: Tensor) -> Tensor:
    first, second = every_second(x), every_second(x)
    pairs = stack_last([neg(second), first])
    return reshape(pairs, x.shape)


def cohere(spec: _Spec, build: Builder) -> Decoder:
    """The body of the model."""

    def norm(name: str, size: int) -> LayerNorm:
        return LayerNorm(build, name, (size,))

    def head_norm(which: str, heads: int) -> LayerNorm:
        return LayerNorm(build, f"self_attn.{which}_norm", (heads, spec.head_dim))

    def layer(kind: LayerType) -> Parallel:
        rotates = kind == SLIDING or not isinstance(spec, WindowedSpec)
        attention = GroupedQueryAttention(
            spec,
            build,
            spec.attention_bias,
            spec.attention_bias,
            norm=head_norm if spec.qk_norm else None,
            project=normed_between,
            rotate=rotate_pairs if rotates else unrotated,
        )
        return Parallel(spec, build, attention, GatedMLP(spec, build), norm)

    return Decoder(spec, build, layer, layer_types(spec), norm=norm)


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: ScaledLM(cohere(spec, build), spec, build)}
