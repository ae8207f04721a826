"""Helium: Llama whose heads are rotated in neighbouring pairs, with norms weighted in float32.

After transformers' modeling_helium.py (5.23).
"""

from __future__ import annotations

from functools import partial
from typing import Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.norms import WidelyWeightedRMSNorm
from estimator.families.rotations import rotate_half_of_pairs
from estimator.families.spec import RotaryDecoderSpec, Size
from estimator.tape.pointwise import add, mul
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import unsqueeze


class HeliumSpec(RotaryDecoderSpec):
    in_sglang = "transformers"
    can = Abilities()
    cached = tensor_parallel = True

    max_position_embeddings: Size | None = 4096
    attention_bias: bool = False
    mlp_bias: bool = False

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.head_dim * self.num_attention_heads != self.hidden_size:
            raise ValueError(f"hidden_size {self.hidden_size} is not head_dim {self.head_dim} x {self.num_attention_heads} heads")
        return self


SPECS = {"helium": HeliumSpec}


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb`: each number of the table's first half is repeated for both of a pair."""
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    c = empty(c.tape, c.shape, c.dtype, "repeat_interleave")
    s = empty(s.tape, s.shape, s.dtype, "repeat_interleave")
    rotated_q = add(mul(q, c), mul(rotate_half_of_pairs(q), s))
    rotated_k = add(mul(k, c), mul(rotate_half_of_pairs(k), s))
    return rotated_q, rotated_k


def helium(spec: HeliumSpec, build: Builder) -> Decoder:
    """The body of the model."""
    norm = partial(WidelyWeightedRMSNorm, build)

    def layer(_: None) -> PreNorm:
        attention = GroupedQueryAttention(spec, build, spec.attention_bias, rotate=_rotate)
        return PreNorm(spec, build, attention, GatedMLP(spec, build, bias=spec.mlp_bias), norm)

    return Decoder(spec, build, layer, norm=norm)


HEADS = decoder_heads(helium)
