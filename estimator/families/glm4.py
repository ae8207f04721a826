"""GLM-4: half of each head rotated in neighbouring pairs, gate and input in one layer; 0414 (`glm4`) has norms after blocks, too.

After transformers' modeling_glm.py and modeling_glm4.py (5.23).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm, Sandwich
from estimator.families.feed_forward import FusedGatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.qwen_vl_text import InThree
from estimator.families.rotary import PartialRotarySpec
from estimator.families.rotations import rotate_half_of_pairs
from estimator.families.spec import Size
from estimator.tape.pointwise import add, mul
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, narrow, unsqueeze


class Glm4Spec(PartialRotarySpec):
    can = Abilities(gguf=True, graph="glm-4")
    cached = True

    max_position_embeddings: Size | None = 131072
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    attention_bias: bool = True


class GlmSpec(Glm4Spec):
    """GLM-4 of 2024, and ChatGLM 2 and 3, whose code is their checkpoints' own."""

    can = Abilities(gguf=True, graph="glm-1")
    in_sglang = "transformers"


SPECS = {"glm4": Glm4Spec, "glm": GlmSpec}


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb`: each number of the table's first half is repeated for both of a pair; the rest is joined again."""
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    c = empty(c.tape, c.shape, c.dtype, "repeat_interleave")
    s = empty(s.tape, s.shape, s.dtype, "repeat_interleave")
    return _rotate_pairs(q, k, c, s)


def _rotate_in_three(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The same with a table that has each number twice already (modeling_glm4v.py)."""
    return _rotate_pairs(q, k, unsqueeze(cos, 1), unsqueeze(sin, 1))


def _rotate_pairs(q: Tensor, k: Tensor, c: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    rotary, rest = c.shape[-1], q.shape[-1] - c.shape[-1]
    q_rot, q_pass = narrow(q, -1, rotary), narrow(q, -1, rest)
    k_rot, k_pass = narrow(k, -1, rotary), narrow(k, -1, rest)
    q_embed = add(mul(q_rot, c), mul(rotate_half_of_pairs(q_rot), s))
    k_embed = add(mul(k_rot, c), mul(rotate_half_of_pairs(k_rot), s))
    q_embed = cat((q_embed, q_pass), -1)
    k_embed = cat((k_embed, k_pass), -1)
    return q_embed, k_embed


def glm4(spec: Glm4Spec, build: Builder, in_three: bool = False) -> Decoder:
    """The body of the model. `in_three`: its rotary positions are in three dimensions, as those of one that sees are."""
    rotary = (InThree if in_three else Rotary)(spec.rotary_size)

    def layer(_: None) -> PreNorm | Sandwich:
        attention = GroupedQueryAttention(spec, build, spec.attention_bias, rotate=_rotate_in_three if in_three else _rotate)
        mlp = FusedGatedMLP(spec, build)
        if isinstance(spec, GlmSpec):
            return PreNorm(spec, build, attention, mlp)
        names = "input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"
        before_attention, before_mlp, after_attention, after_mlp = [build.rms_norm(name, spec.hidden_size) for name in names]
        return Sandwich(attention, mlp, (before_attention, after_attention, before_mlp, after_mlp))

    return Decoder(spec, build, layer, rotary=rotary, positioned=not in_three)


HEADS = decoder_heads(glm4)
