"""Ministral: Mistral whose layers may see a sliding window or everything; all see a window unless the config says otherwise.

After transformers' modeling_ministral.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.spec import Size
from estimator.families.windows import LayerType, WindowedSpec


class MinistralSpec(WindowedSpec):
    can = Abilities()
    default_period = 2**12 + 1  # more than there can be layers

    max_position_embeddings: Size | None = 131072


SPECS = {"ministral": MinistralSpec}


def ministral(spec: WindowedSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(_: LayerType) -> PreNorm:
        return PreNorm(spec, build, GroupedQueryAttention(spec, build), GatedMLP(spec, build))

    return Decoder(spec, build, layer, spec.kinds)


HEADS = decoder_heads(ministral)
