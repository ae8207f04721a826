"""Gemma 4: its language models that see images, and of which the small ones hear.

After transformers' modeling_gemma4.py (5.23). Of what is heard the parameters are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, sqrt
from typing import Any

from pydantic import SerializeAsAny, model_validator

from estimator.families import build_model
from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.gemma4_audio import Gemma4AudioSpec
from estimator.families.gemma4_text import Gemma4Body, RMSNorm
from estimator.families.gemma4_text import Gemma4Spec as Gemma4TextSpec
from estimator.families.gemma4_vision import Gemma4VisionSpec
from estimator.families.heads import CausalLM
from estimator.families.image_text import ImageTextToText
from estimator.families.model_output import Held
from estimator.families.modules import Module
from estimator.families.parts import MultimodalSpec, build_part, part
from estimator.tape import dtypes
from estimator.tape.pointwise import where_either
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape, select, unsqueeze


SOFT_TOKENS = 280
"""Tokens of an image at most: the default of its processor (`max_soft_tokens`), which the published models have."""


class Gemma4Spec(MultimodalSpec):
    """Without `audio_config` it hears nothing."""

    runs = True
    patches_images = True
    kinds = {"text_config": "gemma4_text", "vision_config": "gemma4_vision", "audio_config": "gemma4_audio"}
    fixed = ("text_config", "vision_config", "audio_config")
    towers = ("gemma4_vision",)
    languages = ("gemma4_text",)
    text_class = Gemma4TextSpec

    text_config: SerializeAsAny[Gemma4TextSpec]
    vision_config: SerializeAsAny[Gemma4VisionSpec]
    audio_config: SerializeAsAny[Gemma4AudioSpec] | None = None
    tie_word_embeddings: bool = True

    @model_validator(mode="before")
    @classmethod
    def _audio(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not isinstance(said := given.get("audio_config"), Mapping):
            return given
        return {**given, "audio_config": part(said, "audio_config", cls.kinds["audio_config"], True, Gemma4AudioSpec)}

    @property
    def most_patches(self) -> int:
        """Patches that every image is filled up to."""
        return SOFT_TOKENS * self.vision_config.pooling_kernel_size**2

    def image_grid(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows of an image's tokens: it is resized to the most whole squares that there may be, its shape kept
        (image_processing_gemma4.py, `get_aspect_ratio_preserving_size`)."""
        side = self.vision_config.pooling_kernel_size * self.vision_config.patch_size
        factor = sqrt(self.most_patches * self.vision_config.patch_size**2 / (width * height))
        columns, rows = floor(factor * width / side), floor(factor * height / side)
        if not rows:
            return min(width // height, SOFT_TOKENS), 1
        if not columns:
            return 1, min(height // width, SOFT_TOKENS)
        return columns, rows

    def image_tokens(self, width: int, height: int) -> int | None:
        columns, rows = self.image_grid(width, height)
        return columns * rows

    @property
    def picture(self) -> Picture | None:
        return Picture(SOFT_TOKENS, self.most_patches * self.vision_config.patch_numbers)

    def config(self) -> dict[str, Any]:
        return super().config() | {"audio_config": self.audio_config.config() if self.audio_config else None}


SPECS = {"gemma4": Gemma4Spec}


class Embedder:
    """A norm without a weight and a linear layer (`Gemma4MultimodalEmbedder`)."""

    def __init__(self, build: Builder, name: str, given: int, size: int):
        self.norm = RMSNorm(build, name + ".embedding_pre_projection_norm", given, weighted=False)
        self.projection: Module = build.linear(name + ".embedding_projection", given, size)

    def __call__(self, features: Tensor) -> Tensor:
        return self.projection(self.norm(features))


class Gemma4(ImageTextToText):
    """The whole model (`Gemma4ForConditionalGeneration`). `language`: whose logits may go through a tanh."""

    def __init__(self, language: CausalLM, build: Builder, held: object):
        super().__init__(language, None, build, held=held)
        assert isinstance(language.body, Gemma4Body)
        self.body: Gemma4Body = language.body
        self.logits = language.logits

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids = inputs[0]
        hidden, *features = self._read(*inputs)
        with ids.tape.losing():
            logits = self.logits(hidden)
            return self.loss(logits, ids), (logits, *features)

    def _read(self, ids: Tensor, pixels: Tensor | None = None, types: Tensor | None = None) -> tuple[Tensor, ...]:
        marked = [empty(ids.tape, ids.shape, dtypes.bool_, "eq") for _ in ("image", "video", "audio")]
        either = empty(ids.tape, ids.shape, dtypes.bool_, "bitwise_or")
        special = empty(ids.tape, ids.shape, dtypes.bool_, "bitwise_or")
        del either
        copy = empty(ids.tape, ids.shape, dtypes.int64, "clone")
        words = empty(ids.tape, ids.shape, dtypes.int64, "where")
        del copy
        embeds = self.body.embed_tokens(words)
        by_id = padded = None
        if self.body.per_layer is not None:
            padded = where_either(unsqueeze(special, 2), reshape(select(self.body.embed_tokens.weight, 0), (1, 1, -1)), embeds)
            by_id = self.body.per_layer.by_id(words)
        hidden = self.body.forward(words, embeds, None, by_id)
        del marked, special, padded
        return (hidden,)


def gemma4(spec: Gemma4Spec, build: Builder) -> Gemma4:
    held: list[object] = []
    text, size = spec.language_model, spec.text_config.hidden_size
    with build.part("model.vision_tower", learns=False):
        held.append(build_part(spec.vision_config, build))
    with build.part("model.language_model"):
        language = build_model(text, build, "causal-lm")
    assert isinstance(language, CausalLM)
    if spec.audio_config is not None:
        with build.part("model.audio_tower", learns=False):
            held.append(build_part(spec.audio_config, build))
    with build.part("model", learns=False):
        held.append(Embedder(build, "embed_vision", spec.vision_config.hidden_size, size))
        if spec.audio_config is not None:
            held.append(Embedder(build, "embed_audio", spec.audio_config.output_proj_dims, size))
    return Gemma4(language, build, held)


HEADS = {"image-text-to-text": gemma4}
