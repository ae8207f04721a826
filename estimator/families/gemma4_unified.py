"""Gemma 4 12B, which has no towers: patches of an image, and pieces of a wave, go through a few layers to its language model.

Training on texts alone is modelled. After transformers' modeling_gemma4_unified.py (5.23).
"""

from __future__ import annotations

from pydantic import SerializeAsAny

from estimator.contract.job.images import Images
from estimator.families.build import Builder
from estimator.families.gemma4 import HEAD, Embedder, Gemma4, Gemma4Spec
from estimator.families.gemma4_spec import SGLANG
from estimator.families.gemma4_unified_parts import Gemma4UnifiedAudioSpec, Gemma4UnifiedVisionSpec, vision_embedder
from estimator.families.image_text import Masks, all_or_image, as_asked, language_model, window_or_image
from estimator.families.windows import FULL, SLIDING
from estimator.tape import dtypes
from estimator.tape.tensor import Tensor, empty


class Gemma4UnifiedSpec(Gemma4Spec):
    runs = True
    window_pool = SGLANG
    seen_whole_in_vllm = ("embedding_projection",)
    patches_images = False
    kinds = {
        "text_config": "gemma4_unified_text",
        "vision_config": "gemma4_unified_vision",
        "audio_config": "gemma4_unified_audio",
    }
    towers, languages = ("gemma4_unified_vision",), ("gemma4_unified_text",)
    audio_class = Gemma4UnifiedAudioSpec

    vision_config: SerializeAsAny[Gemma4UnifiedVisionSpec]  # type: ignore[assignment]
    audio_config: SerializeAsAny[Gemma4UnifiedAudioSpec] | None = None  # type: ignore[assignment]

    def image_tokens(self, images: Images) -> int | None:
        return None

    @property
    def picture(self) -> None:
        return None


SPECS = {"gemma4_unified": Gemma4UnifiedSpec}


class Gemma4Unified(Gemma4):
    """The whole model (`Gemma4UnifiedForConditionalGeneration`). Its masks are written out for texts alone, too."""

    def _written(self, embeds: Tensor, types: Tensor | None) -> tuple[Tensor, Masks] | None:
        if self.spec.use_bidirectional_attention != "vision":
            return None
        blocks = empty(embeds.tape, embeds.shape[:2], dtypes.int64, "full")
        full = as_asked(all_or_image(blocks), embeds.dtype, self.attention)
        return blocks, {FULL: full, SLIDING: as_asked(window_or_image(blocks), embeds.dtype, self.attention)}


def unified(spec: Gemma4UnifiedSpec, build: Builder) -> Gemma4Unified:
    held: list[object] = []
    size, vision = spec.text_config.hidden_size, spec.vision_config
    language = language_model(spec, build)
    with build.part("model.embed_vision", learns=False), build.ahead(HEAD):
        held.extend(vision_embedder(vision, build))
        held.append(Embedder(build, "multimodal_embedder", vision.output_proj_dims, size))
    if spec.audio_config is not None:
        with build.part("model", learns=False), build.ahead(HEAD):
            held.append(Embedder(build, "embed_audio", spec.audio_config.hidden_size, size))
    return Gemma4Unified(spec, language, None, build, held)


HEADS = {"image-text-to-text": unified}
