"""GLM-4.7-Flash: DeepSeek-V3's layers in other sizes; all but the first have experts, unless the config says which do.

After transformers' modeling_glm4_moe_lite.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.deepseek import DeepseekV3Spec, deepseek
from estimator.families.experts import LayersOfTypesSpec
from estimator.families.heads import language_model
from estimator.families.spec import Size, called


class Glm4MoeLiteSpec(DeepseekV3Spec, LayersOfTypesSpec):
    can = Abilities(gguf=True, graph="deepseek", routing="sigmoid", mlx_routers="whole")

    max_position_embeddings: Size | None = 202752
    num_experts: Size = called("n_routed_experts", 64)
    num_experts_per_tok: Size = 4
    q_lora_rank: Size | None = 768
    qk_nope_head_dim: Size = 192
    v_head_dim: Size = 256
    first_k_dense_replace: int = 1
    n_group: Size = 1
    topk_group: Size = 1


SPECS = {"glm4_moe_lite": Glm4MoeLiteSpec}
HEADS = language_model(deepseek)
