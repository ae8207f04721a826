"""Mellum 2: Qwen3's layers with experts, of which some see a sliding window and each kind has rotary frequencies of its own.

After transformers' modeling_mellum.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import BATCHES, Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.experts import AUXILIARY, EXPERTS_HELD_IN, LayersOfTypesSpec
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import language_model
from estimator.families.llama import Qwen3Spec, decoder_layer
from estimator.families.mixtral import Qwen3Moe
from estimator.families.spec import Size, called
from estimator.families.windows import LayerType, WindowedSpec, masks_seen


class MellumSpec(WindowedSpec, LayersOfTypesSpec, Qwen3Spec):
    """All layers see everything and have experts, unless `layer_types` and `mlp_layer_types` say otherwise."""

    can = Abilities(batches=BATCHES, gguf=True, graph="mellum-2", mlx_routers="8 bits")
    cached = tensor_parallel = False
    implementations = ("transformers",)
    held_in = EXPERTS_HELD_IN
    modelled = AUXILIARY
    default_period = 1

    max_position_embeddings: Size | None = 131072
    sliding_window: Size = 1024
    num_experts: Size = called("num_local_experts", 64)
    num_experts_per_tok: Size = 8
    n_shared_experts: None = None  # type: ignore[assignment]
    norm_topk_prob: bool = True


SPECS = {"mellum": MellumSpec}


def mellum(spec: MellumSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(kind: tuple[LayerType, bool]) -> PreNorm:
        return decoder_layer(spec, build, Qwen3Moe if kind[1] else GatedMLP)

    kinds = list(zip(spec.kinds, spec.sparse(), strict=True))
    rotary = Rotary(spec.head_dim, kinds=spec.kinds)
    return Decoder(spec, build, layer, kinds, rotary=rotary, masks=masks_seen, sees=lambda kind: kind[0])


HEADS = language_model(mellum)
