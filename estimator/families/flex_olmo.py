"""FlexOlmo: OLMo 2's attention and norms, and OLMoE's experts.

After transformers' modeling_flex_olmo.py (5.23).
"""

from __future__ import annotations

from functools import partial

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PostNorm
from estimator.families.experts import AUXILIARY, EXPERTS_HELD_IN, MoeSpec
from estimator.families.grouped_query import GroupedQueryAttention, normed_whole
from estimator.families.heads import language_model
from estimator.families.modules import Module
from estimator.families.norms import WideRMSNorm
from estimator.families.olmo import rotate_in_float32
from estimator.families.olmoe import OlmoeMoe
from estimator.families.spec import RotaryDecoderSpec, Size
from estimator.tape import dtypes


class FlexOlmoSpec(RotaryDecoderSpec, MoeSpec):
    heads_normed_together = "gathered"
    in_sglang = "none"
    why_not_sglang = "its backend for transformers' models knows no `colwise_gather_output` of their plan"
    can = Abilities()
    held_in = EXPERTS_HELD_IN
    modelled = AUXILIARY

    max_position_embeddings: Size | None = 4096
    num_experts: Size = 7
    num_experts_per_tok: Size = 5
    norm_topk_prob: bool = False
    attention_bias: bool = False


SPECS = {"flex_olmo": FlexOlmoSpec}


def flex_olmo(spec: FlexOlmoSpec, build: Builder) -> Decoder:
    """The body of the model."""
    norm, bias = partial(WideRMSNorm, build), spec.attention_bias

    def head_norm(which: str, heads: int) -> Module:
        return norm(f"self_attn.{which}_norm", heads * spec.head_dim)

    def layer(_: None) -> PostNorm:
        attention = GroupedQueryAttention(spec, build, bias, bias, norm=head_norm, project=normed_whole, rotate=rotate_in_float32)
        return PostNorm(spec, build, attention, OlmoeMoe(spec, build), norm)

    return Decoder(spec, build, layer, rotary=Rotary(spec.head_dim, dtypes.float32), norm=norm)


HEADS = language_model(flex_olmo)
