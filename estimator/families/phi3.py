"""Phi-3, Phi-3.5 and Phi-4: one projection for queries, keys and values, one for the feed-forward layer's gate and input.

After transformers' modeling_phi3.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm, dropping
from estimator.families.feed_forward import FusedGatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.modules import rotated
from estimator.families.rotary import PartialRotarySpec, frequencies
from estimator.families.spec import DecoderSpec, Probability, Size
from estimator.tape.layout import Shape
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, narrow, reshape, transpose, unsqueeze


class Phi3Spec(PartialRotarySpec):
    can = Abilities(gguf=True, graph="phi-3")
    cached = True
    ropes = ("default", "longrope", "su", "yarn")

    max_position_embeddings: Size | None = 4096
    resid_pdrop: Probability = 0.0
    sliding_window: Size | None = None
    rope_type: Literal["default", "longrope"] = "default"
    """`longrope` keeps another table of frequencies, for sequences longer than the model was first made for."""

    @property
    def window(self) -> int | None:
        return self.sliding_window

    @classmethod
    def from_rope(cls, kind: str, nested: Mapping[str, Any]) -> dict[str, Any]:
        """transformers takes the older names for longrope, too."""
        return super().from_rope(kind, nested) | ({} if kind == "default" else {"rope_type": "longrope"})

    def config(self) -> dict[str, Any]:
        """With factors for longrope, which transformers asks for; they change no shape."""
        fields = super().config()
        if fields.pop("rope_type") == "longrope":
            factors = [1.0] * (self.rotary_size // 2)
            fields["rope_parameters"] = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors}
        return fields


SPECS = {"phi3": Phi3Spec}


def rotate_joined(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb`: of each head, the first elements are rotated; the rest, which may be none, is joined again."""
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    rotary = cos.shape[-1]
    rest = q.shape[-1] - rotary
    q_rot, q_pass = narrow(q, -1, rotary), narrow(q, -1, rest)
    k_rot, k_pass = narrow(k, -1, rotary), narrow(k, -1, rest)
    q_embed = cat((rotated(q_rot, c, s), q_pass), -1)
    k_embed = cat((rotated(k_rot, c, s), k_pass), -1)
    return q_embed, k_embed


class Phi3Attention(GroupedQueryAttention):
    def make_projections(self, spec: DecoderSpec, build: Builder, bias: bool, output_bias: bool, output: str) -> None:
        self.queries, self.keys = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
        self.o_proj = build.linear("self_attn.o_proj", self.queries, spec.hidden_size)
        self.qkv_proj = build.linear("self_attn.qkv_proj", spec.hidden_size, self.queries + 2 * self.keys)


def split_heads(module: Any, hidden: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    """Queries, keys and values are views of one tensor, which is held."""
    qkv = module.qkv_proj(hidden)
    q = narrow(qkv, -1, module.queries)
    k = narrow(qkv, -1, module.keys)
    v = narrow(qkv, -1, module.keys)
    q = transpose(reshape(q, heads), 1, 2)
    k = transpose(reshape(k, heads), 1, 2)
    return q, k, transpose(reshape(v, heads), 1, 2), qkv


class Phi3Rotary(Rotary):
    def __init__(self, spec: Phi3Spec):
        super().__init__(spec.rotary_size)
        self.long = spec.rope_type == "longrope"

    def buffers(self, build: Builder) -> list[Tensor]:
        return [*super().buffers(build), *(frequencies(build, self.size, ("long_inv_freq",)) if self.long else [])]


def phi3(spec: Phi3Spec, build: Builder) -> Decoder:
    """The body of the model."""
    join = dropping(build, spec.resid_pdrop)

    def layer(_: None) -> PreNorm:
        attention = Phi3Attention(spec, build, project=split_heads, rotate=rotate_joined)
        return PreNorm(spec, build, attention, FusedGatedMLP(spec, build), join=join)

    return Decoder(spec, build, layer, rotary=Phi3Rotary(spec))


HEADS = decoder_heads(phi3)
