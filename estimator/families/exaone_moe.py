"""K-EXAONE: EXAONE 4's attention behind norms, and DeepSeek-V3's experts.

After transformers' modeling_exaone_moe.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.deepseek import DeepseekMoe
from estimator.families.exaone4 import Exaone4Spec, self_attention
from estimator.families.experts import AUXILIARY, EXPERTS_HELD_IN, LayersOfTypesSpec
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import language_model
from estimator.families.spec import Size, called
from estimator.families.windows import LayerType, masks_seen


class ExaoneMoeSpec(Exaone4Spec, LayersOfTypesSpec):
    can = Abilities(gguf=True, graph="exaone-moe", routing="scaled sigmoid", mlx_routers="whole")
    held_in = EXPERTS_HELD_IN
    modelled = {**AUXILIARY, "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)}

    sliding_window: Size = 4096
    num_experts: Size = 64
    num_experts_per_tok: Size = 8
    n_shared_experts: Size = called("num_shared_experts", 1)
    first_k_dense_replace: int = 1
    n_group: Size = 1
    topk_group: Size = 1
    norm_topk_prob: bool = True


SPECS = {"exaone_moe": ExaoneMoeSpec}


def exaone_moe(spec: ExaoneMoeSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(kind: tuple[LayerType, bool]) -> PreNorm:
        sees, sparse = kind
        attention = self_attention(spec, build, sees)
        return PreNorm(spec, build, attention, DeepseekMoe(spec, build) if sparse else GatedMLP(spec, build))

    kinds = list(zip(spec.kinds, spec.sparse(), strict=True))
    return Decoder(spec, build, layer, kinds, masks=masks_seen, sees=lambda kind: kind[0])


HEADS = language_model(exaone_moe)
