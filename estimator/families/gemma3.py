"""Gemma 3 and PaliGemma: language models of the Gemma kind that see images through SigLIP's tower.

After transformers' modeling_gemma3.py and modeling_paligemma.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.gemma import RMSNorm
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.spec import Size
from estimator.families.towers import SquareTowerSpec

PICTURE = 256
"""Tokens of an image in Gemma 3: the default of its configuration (`mm_tokens_per_image`), which the published models have."""


class Gemma3Spec(MultimodalSpec):
    """`stretched` is the published models' linear scaling of rotary positions, which leaves parameters as they are."""

    stretched = 8
    kinds = {"text_config": "gemma3_text", "vision_config": "siglip_vision_model"}
    fixed = ("text_config",)

    tie_word_embeddings: bool = True

    @property
    def picture(self) -> Picture | None:
        tower = self.vision_config
        return Picture(PICTURE, tower.pixels) if isinstance(tower, SquareTowerSpec) else None


class PaliGemmaSpec(MultimodalSpec):
    in_sglang = False
    kinds = {"text_config": "gemma", "vision_config": "siglip_vision_model"}
    unread = ("use_bidirectional_attention",)

    projection_dim: Size = 2048
    tie_word_embeddings: bool = True

    @property
    def picture(self) -> Picture | None:
        tower = self.vision_config
        return Picture(tower.patches, tower.pixels) if isinstance(tower, SquareTowerSpec) else None


SPECS = {"gemma3": Gemma3Spec, "paligemma": PaliGemmaSpec}


def between(spec: Gemma3Spec | PaliGemmaSpec, build: Builder) -> None:
    """What is between the tower and the language model."""
    seen = spec.vision_config.hidden_size
    if isinstance(spec, PaliGemmaSpec):
        build.linear("multi_modal_projector.linear", seen, spec.projection_dim, True)
    else:
        build.parameter("multi_modal_projector.mm_input_projection_weight", (seen, spec.text_config.hidden_size))
        RMSNorm(build, "multi_modal_projector.mm_soft_emb_norm", seen)


HEADS = multimodal(between)
