"""Ministral 3 and Devstral 2: Mistral whose queries grow with their position.

After transformers' modeling_ministral3.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.rotations import scaled_by_position
from estimator.families.spec import RotaryDecoderSpec, Size
from estimator.tape.tensor import Tensor


class Ministral3Spec(RotaryDecoderSpec):
    can = Abilities(gguf=True, graph="ministral-3")
    cached = tensor_parallel = True

    max_position_embeddings: Size | None = 262144
    sliding_window: Size | None = None

    @property
    def window(self) -> int | None:
        return self.sliding_window


SPECS = {"ministral3": Ministral3Spec}


def ministral3(spec: Ministral3Spec, build: Builder) -> Decoder:
    """The body of the model."""

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        q, k = build.kernels.rotate(q, k, cos, sin)
        q = scaled_by_position(q, cos)
        return q, k

    def layer(_: None) -> PreNorm:
        return PreNorm(spec, build, GroupedQueryAttention(spec, build, rotate=rotate), GatedMLP(spec, build))

    return Decoder(spec, build, layer)


HEADS = decoder_heads(ministral3)
