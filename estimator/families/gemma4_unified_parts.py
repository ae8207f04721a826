"""What images and sounds go through in Gemma 4 12B, which has no towers. Its parameters are counted.

After transformers' modeling_gemma4_unified.py (5.23).
"""

from __future__ import annotations

from typing import Any

from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.modules import Module
from estimator.families.spec import ModelSpec, Size, called
from estimator.families.towers import TowerSpec


class Gemma4UnifiedVisionSpec(TowerSpec):
    """What an image's squares go through: `mm_embed_dim` numbers each, with `mm_posemb_size` places by row and by column."""

    hidden_size: Size = called("mm_embed_dim", 3840)
    num_hidden_layers: int = 0
    num_attention_heads: Size = 1
    pooling_kernel_size: Size = 3
    mm_posemb_size: Size = 1120
    output_proj_dims: Size = 3840

    def config(self) -> dict[str, Any]:
        """Without what no configuration of it has."""
        asked = {"model_type", "hidden_size", "patch_size", "pooling_kernel_size", "mm_posemb_size", "output_proj_dims"}
        return self.model_dump(mode="json", by_alias=True, include=asked)

    @property
    def square(self) -> int:
        """Numbers of one square, of all channels."""
        return 3 * (self.patch_size * self.pooling_kernel_size) ** 2


class Gemma4UnifiedAudioSpec(ModelSpec):
    """Pieces of a wave, of so many samples."""

    runs = False

    hidden_size: Size = called("audio_embed_dim", 640)
    num_hidden_layers: int = 0

    def config(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, include={"model_type", "hidden_size"})


SPECS: dict[str, type[ModelSpec]] = {
    "gemma4_unified_vision": Gemma4UnifiedVisionSpec,
    "gemma4_unified_audio": Gemma4UnifiedAudioSpec,
}


def vision_embedder(spec: Gemma4UnifiedVisionSpec, build: Builder) -> list[Module]:
    """`Gemma4UnifiedVisionEmbedder`, without the layer that gives what the language model reads: modules, which live with it."""
    build.parameter("pos_embedding", (spec.mm_posemb_size, 2, spec.hidden_size))
    return [
        build.layer_norm("patch_ln1", spec.square),
        build.linear("patch_dense", spec.square, spec.hidden_size, True),
        build.layer_norm("patch_ln2", spec.hidden_size),
        build.layer_norm("pos_norm", spec.hidden_size),
    ]


HEADS = {"features": counted(vision_embedder)}
