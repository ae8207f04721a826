"""GLM-4.5 to 4.7: DeepSeek-V3's experts behind grouped-query attention of which half of each head is rotated.

After transformers' modeling_glm4_moe.py (5.23).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.deepseek import DeepseekMoe
from estimator.families.experts import GroupedExpertsSpec
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention, normed_between
from estimator.families.heads import language_model
from estimator.families.modules import Module, rotate_part
from estimator.families.qwen_vl_text import InThree
from estimator.families.rotary import PartialRotarySpec
from estimator.families.spec import Size, called


class Glm4MoeSpec(PartialRotarySpec, GroupedExpertsSpec):
    float32_router = True
    parts_in_sglang = True
    can = Abilities(gguf=True, graph="glm-4-moe", routing="sigmoid", mlx_routers="whole")

    max_position_embeddings: Size | None = 131072
    num_experts: Size = called("n_routed_experts", 128)
    num_experts_per_tok: Size = 8
    first_k_dense_replace: int = 1
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    attention_bias: bool = False
    use_qk_norm: bool = False

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised."""
        return self.use_qk_norm

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        """Whether there are biases for queries, keys and values; in attention's output layer; in the feed-forward layers."""
        return self.attention_bias, False, False


SPECS = {"glm4_moe": Glm4MoeSpec}


def glm4_moe(spec: Glm4MoeSpec, build: Builder, in_three: bool = False) -> Decoder:
    """The body of the model. `in_three`: its rotary positions are in three dimensions, as those of one that sees are."""
    rotary = (InThree if in_three else Rotary)(spec.rotary_size)

    def norm(which: str, _: int) -> Module:
        return build.rms_norm(f"self_attn.{which}_norm", spec.head_dim)

    def layer(sparse: bool) -> PreNorm:
        attention = GroupedQueryAttention(
            spec,
            build,
            spec.attention_bias,
            norm=norm if spec.use_qk_norm else None,
            project=normed_between,
            rotate=rotate_part,
        )
        return PreNorm(spec, build, attention, DeepseekMoe(spec, build) if sparse else GatedMLP(spec, build))

    return Decoder(spec, build, layer, spec.sparse(), rotary=rotary)


HEADS = language_model(glm4_moe)
