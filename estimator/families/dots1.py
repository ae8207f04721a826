"""dots.llm1: Qwen3's attention and DeepSeek-V3's experts.

After transformers' modeling_dots1.py (5.23).
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.deepseek import DeepseekMoe
from estimator.families.each_layer import check_each_named
from estimator.families.experts import GroupedExpertsSpec
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import language_model
from estimator.families.modules import Module
from estimator.families.spec import RotaryDecoderSpec
from estimator.families.windows import FULL


class Dots1Spec(RotaryDecoderSpec, GroupedExpertsSpec):
    """Layers with a sliding window, which none that is published has, are not modelled."""

    in_sglang = "transformers"
    can = Abilities(gguf=True, graph="plain", routing="sigmoid", mlx_routers="whole")
    last_vllm = "0.23"

    attention_bias: bool = False
    norm_topk_prob: bool = False
    layer_types: tuple[Literal["full_attention"], ...] | None = None

    def config(self) -> dict[str, Any]:
        return super().config() | {"layer_types": [FULL] * self.num_hidden_layers}

    @model_validator(mode="after")
    def _each_layer(self) -> Self:
        check_each_named(self.layer_types, self.num_hidden_layers)
        return self


SPECS = {"dots1": Dots1Spec}


def dots1(spec: Dots1Spec, build: Builder) -> Decoder:
    """The body of the model."""
    bias = spec.attention_bias

    def norm(which: str, _: int) -> Module:
        return build.rms_norm(f"self_attn.{which}_norm", spec.head_dim)

    def layer(sparse: bool) -> PreNorm:
        attention = GroupedQueryAttention(spec, build, bias, bias, norm=norm)
        return PreNorm(spec, build, attention, DeepseekMoe(spec, build) if sparse else GatedMLP(spec, build))

    return Decoder(spec, build, layer, spec.sparse())


HEADS = language_model(dots1)
