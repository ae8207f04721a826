"""LLaVA: a language model that gets an image's patches through two linear layers; LLaVA-NeXT and Mistral 3 after it.

After transformers' modeling_llava.py, modeling_llava_next.py and modeling_mistral3.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.spec import Size
from estimator.families.towers import SquareTowerSpec


class _Spec(MultimodalSpec):
    """What the three have in common."""

    vision_feature_layer: int | tuple[int, ...] = -2
    multimodal_projector_bias: bool = True

    @property
    def seen(self) -> int:
        """Width of what the tower gives: of one of its layers, or of several side by side."""
        layers = self.vision_feature_layer
        return self.vision_config.hidden_size * (len(layers) if isinstance(layers, tuple) else 1)


class LlavaSpec(_Spec):
    kinds = {"text_config": "llama", "vision_config": "clip_vision_model"}

    @property
    def picture(self) -> Picture | None:
        tower = self.vision_config
        return Picture(tower.patches, tower.pixels) if isinstance(tower, SquareTowerSpec) else None

    @property
    def tied(self) -> bool:
        return self.tie_word_embeddings or self.text_config.tie_word_embeddings


class LlavaNextSpec(_Spec):
    in_sglang = False
    kinds = {"text_config": "llama", "vision_config": "clip_vision_model"}


class Mistral3Spec(_Spec):
    kinds = {"text_config": "mistral", "vision_config": "pixtral"}

    vision_feature_layer: int | tuple[int, ...] = -1
    multimodal_projector_bias: bool = False
    spatial_merge_size: Size = 2
    tie_word_embeddings: bool = True

    @property
    def picture(self) -> Picture | None:
        """Its rows end with a token each."""
        tower = self.vision_config
        if not isinstance(tower, SquareTowerSpec):
            return None
        side = -(-tower.image_size // (tower.patch_size * self.spatial_merge_size))
        return Picture(side * (side + 1), tower.pixels)


SPECS = {"llava": LlavaSpec, "llava_next": LlavaNextSpec, "mistral3": Mistral3Spec}


def between(spec: _Spec, build: Builder) -> None:
    """What is between the tower and the language model."""
    read, bias = spec.text_config.hidden_size, spec.multimodal_projector_bias
    if isinstance(spec, LlavaNextSpec):
        build.parameter("image_newline", (read,))
    if isinstance(spec, Mistral3Spec):
        size = spec.vision_config.hidden_size
        build.rms_norm("multi_modal_projector.norm", size)
        build.linear("multi_modal_projector.patch_merger.merging_layer", size * spec.spatial_merge_size**2, size)
    build.linear("multi_modal_projector.linear_1", spec.seen, read, bias)
    build.linear("multi_modal_projector.linear_2", read, read, bias)


HEADS = multimodal(between)
