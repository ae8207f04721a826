"""A.X K1: DeepSeek-V3 with a norm behind the experts of each layer that has them.

After transformers' modeling_axk1.py (5.23).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from estimator.families.abilities import BATCHES, Abilities
from estimator.families.build import Builder
from estimator.families.deepseek import DeepseekMoe, DeepseekV3Spec, deepseek
from estimator.families.experts import LayersOfTypesSpec
from estimator.families.heads import decoder_heads
from estimator.families.spec import Size, called
from estimator.tape.tensor import Tensor


class AXK1Spec(DeepseekV3Spec, LayersOfTypesSpec):
    in_sglang = "none"
    why_not_sglang = "its backend for transformers' models knows no latent attention"
    can = Abilities(batches=BATCHES)
    held_in = {}  # its checkpoints are read by a pattern of its own, which PEFT does not follow (`_MODEL_TO_CONVERSION_PATTERN`)

    max_position_embeddings: Size | None = 32768
    num_experts: Size = called("n_routed_experts", 192)
    q_lora_rank: Size = 1536
    first_k_dense_replace: int = 1


SPECS = {"axk1": AXK1Spec}


class NormedMoe(DeepseekMoe):
    """`AXK1MoE`."""

    def __init__(self, spec: Any, build: Builder):
        super().__init__(spec, build)
        self.post_mlp_layernorm = build.rms_norm("mlp.post_mlp_layernorm", spec.hidden_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.post_mlp_layernorm(super().__call__(hidden))


HEADS = decoder_heads(partial(deepseek, experts=NormedMoe))
