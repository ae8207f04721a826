"""Solar Open: Llama's attention and, in every layer, DeepSeek-V3's experts.

After transformers' modeling_solar_open.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.deepseek import DeepseekMoe
from estimator.families.experts import GroupedExpertsSpec
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import language_model
from estimator.families.spec import RotaryDecoderSpec, Size, called


class SolarOpenSpec(RotaryDecoderSpec, GroupedExpertsSpec):
    """It has no dense layers, so that nothing is `intermediate_size` wide."""

    in_sglang = "transformers"
    unplanned = ("shared_experts.",)
    can = Abilities(gguf=True, graph="glm-4-moe", routing="sigmoid")
    modelled = {**GroupedExpertsSpec.modelled, "first_k_dense_replace": (0,), "partial_rotary_factor": (1, 1.0)}

    max_position_embeddings: Size | None = 131072
    intermediate_size: Size = 10240
    num_experts: Size = called("n_routed_experts", 128)
    num_experts_per_tok: Size = 8
    attention_bias: bool = False


SPECS = {"solar_open": SolarOpenSpec}


def solar_open(spec: SolarOpenSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(_: None) -> PreNorm:
        return PreNorm(spec, build, GroupedQueryAttention(spec, build, spec.attention_bias), DeepseekMoe(spec, build))

    return Decoder(spec, build, layer)


HEADS = language_model(solar_open)
