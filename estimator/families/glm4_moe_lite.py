"""GLM-4.7-Flash: DeepSeek-V3's layers in other sizes; all but the first have experts, unless the config says which do.

After transformers' modeling_glm4_moe_lite.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.deepseek import DeepseekV3Spec, deepseek
from estimator.families.heads import language_model
from estimator.families.spec import Size, called


class Glm4MoeLiteSpec(DeepseekV3Spec):
    """`mlp_layer_types` says what each layer has; that the first few are dense can be said by their number instead."""

    can = Abilities()

    max_position_embeddings: Size | None = 202752
    num_experts: Size = called("n_routed_experts", 64)
    num_experts_per_tok: Size = 4
    q_lora_rank: Size | None = 768
    qk_nope_head_dim: Size = 192
    v_head_dim: Size = 256
    first_k_dense_replace: int = 1
    n_group: Size = 1
    topk_group: Size = 1
    mlp_layer_types: tuple[Literal["dense", "sparse"], ...] | None = None

    def sparse(self) -> list[bool]:
        return [kind == "sparse" for kind in self.mlp_layer_types] if self.mlp_layer_types else super().sparse()

    @model_validator(mode="before")
    @classmethod
    def _first_dense(cls, given: Any) -> Any:
        """Types of which only the first few are dense are said by their number, and then follow the number of layers."""
        if not isinstance(given, Mapping) or not isinstance(given.get("mlp_layer_types"), list | tuple):
            return given
        types = list(given["mlp_layer_types"])
        dense = types.count("dense")
        if types != ["dense"] * dense + ["sparse"] * (len(types) - dense) or len(types) != given.get("num_hidden_layers"):
            return given
        return {name: value for name, value in given.items() if name != "mlp_layer_types"} | {"first_k_dense_replace": dense}

    @model_validator(mode="after")
    def _each_layer(self) -> Self:
        if self.mlp_layer_types is not None and len(self.mlp_layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"mlp_layer_types names {len(self.mlp_layer_types)} layers, num_hidden_layers is {self.num_hidden_layers}"
            )
        return self

    def config(self) -> dict[str, Any]:
        types = ["sparse" if sparse else "dense" for sparse in self.sparse()]
        return super().config() | {"mlp_layer_types": types}


SPECS = {"glm4_moe_lite": Glm4MoeLiteSpec}
HEADS = language_model(deepseek)
