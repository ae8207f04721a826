"""OLMo, OLMo 2 and Olmo 3: rotary embeddings in float32, and norms without weights or after each block.

OLMo normalises without weights and may clip queries, keys and values. OLMo 2 normalises what attention and the feed-forward
layers give, and queries and keys. In Olmo 3 layers alternate between a sliding window and all tokens.
After transformers' modeling_olmo.py, modeling_olmo2.py and modeling_olmo3.py (5.23).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PostNorm, PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention, normed_whole
from estimator.families.heads import decoder_heads
from estimator.families.layers import Layer
from estimator.families.modules import Module, rotate
from estimator.families.norms import WideRMSNorm
from estimator.families.spec import RotaryDecoderSpec
from estimator.families.windows import LayerType, WindowedSpec, layer_types
from estimator.tape import dtypes
from estimator.tape.layout import Shape
from estimator.tape.normalization import layer_norm
from estimator.tape.pointwise import clamp_in_place, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, transpose


class _Spec(RotaryDecoderSpec):
    """What the three have in common."""

    norms: ClassVar[bool] = True
    """Whether there are norms with weights: after each block, and of queries and keys."""

    attention_bias: bool = False

    @property
    def clips(self) -> bool:
        """Whether queries, keys and values are cut off at a number."""
        return False


class OlmoSpec(_Spec):
    can = Abilities(gguf=True, graph="olmo-1")
    cached = tensor_parallel = True
    norms = False

    clip_qkv: Annotated[float, Field(gt=0)] | None = None

    @property
    def clips(self) -> bool:
        return self.clip_qkv is not None


class Olmo2Spec(_Spec):
    heads_normed_together = "gathered"
    can = Abilities(gguf=True, graph="olmo-2")
    cached = True


class Olmo3Spec(_Spec, WindowedSpec):
    heads_normed_together = "gathered"
    can = Abilities(gguf=True, graph="olmo-2")
    default_period = 4


SPECS = {"olmo": OlmoSpec, "olmo2": Olmo2Spec, "olmo3": Olmo3Spec}


class LayerNorm:
    """torch's layer norm in float32, without weights."""

    def __call__(self, x: Tensor) -> Tensor:
        return to(layer_norm(to(x, dtypes.float32), None, None), x.dtype)


def rotate_in_float32(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated with cosines and sines in float32, and cast back."""
    rotated_q, rotated_k = rotate(q, k, cos, sin)
    return to(rotated_q, q.dtype), to(rotated_k, k.dtype)


def _clipped(module: GroupedQueryAttention, hidden: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    """All three are projected and cut off at a number; then they are transposed."""
    q = module.q_proj(hidden)
    k = module.k_proj(hidden)
    v = module.v_proj(hidden)
    q = clamp_in_place(q)
    k = clamp_in_place(k)
    v = clamp_in_place(v)
    q = transpose(reshape(q, heads), 1, 2)
    k = transpose(reshape(k, heads), 1, 2)
    return q, k, transpose(reshape(v, heads), 1, 2)


def olmo(spec: _Spec, build: Builder) -> Decoder:
    """The body of the model."""

    def norm(name: str, size: int) -> Module:
        return WideRMSNorm(build, name, size) if spec.norms else LayerNorm()

    def head_norm(which: str, heads: int) -> Module:
        return WideRMSNorm(build, f"self_attn.{which}_norm", heads * spec.head_dim)

    def layer(_: LayerType) -> Layer:
        attention = GroupedQueryAttention(
            spec,
            build,
            spec.attention_bias,
            spec.attention_bias,
            norm=head_norm if spec.norms else None,
            project=_clipped if spec.clips else normed_whole,
            rotate=rotate_in_float32,
        )
        return (PostNorm if spec.norms else PreNorm)(spec, build, attention, GatedMLP(spec, build), norm)

    types = layer_types(spec)
    return Decoder(spec, build, layer, types, rotary=Rotary(spec.head_dim, dtypes.float32, types), norm=norm)


HEADS = decoder_heads(olmo)
