"""Qwen3-Next: gated delta nets and gated attention, before experts of which one gets every token.

After transformers' modeling_qwen3_next.py (5.23); its delta nets run on the path in plain torch.
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.experts import AUXILIARY, EXPERTS_HELD_IN
from estimator.families.feed_forward import GatedMLP
from estimator.families.gated_delta import GatedDeltaSpec, delta_decoder
from estimator.families.heads import decoder_heads
from estimator.families.mixtral import Qwen2Moe, QwenMoeSpec
from estimator.families.spec import Size


class Qwen3NextSpec(GatedDeltaSpec, QwenMoeSpec):
    can = Abilities(gguf=True, graph="qwen-3-next", routing="gate beside", mlx_routers="8 bits")
    held_in = EXPERTS_HELD_IN
    modelled = AUXILIARY

    num_experts: Size = 512
    num_experts_per_tok: Size = 10
    norm_topk_prob: bool = True
    shared_expert_intermediate_size: Size


SPECS = {"qwen3_next": Qwen3NextSpec}


def qwen3_next(spec: Qwen3NextSpec, build: Builder) -> Decoder:
    """The body of the model."""
    return delta_decoder(spec, build, lambda sparse: (Qwen2Moe if sparse else GatedMLP)(spec, build), spec.sparse())


HEADS = decoder_heads(qwen3_next)
