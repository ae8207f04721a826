"""Gemma 4: its language models that see images, and of which the small ones hear.

After transformers' modeling_gemma4.py (5.23). Of what is heard the parameters are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, sqrt
from typing import Any, ClassVar

from pydantic import SerializeAsAny, model_validator

from estimator.contract.job.images import Images
from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.gemma4_audio import Gemma4AudioSpec, audio_model
from estimator.families.gemma4_per_layer import RMSNorm
from estimator.families.gemma4_spec import SGLANG
from estimator.families.gemma4_spec import Gemma4Spec as Gemma4TextSpec
from estimator.families.gemma4_text import Gemma4Body
from estimator.families.gemma4_vision import Gemma4VisionSpec, VisionModel, marked
from estimator.families.heads import Batch, CausalLM
from estimator.families.image_text import ImageTextToText, Masks, as_asked, compare, in_window, language_model
from estimator.families.model_output import Held
from estimator.families.modules import Module, token_positions
from estimator.families.parts import MultimodalSpec, part
from estimator.families.spec import ModelSpec
from estimator.families.windows import FULL, SLIDING
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import to, where_either
from estimator.tape.scatter import masked_scatter
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, reshape, select, unsqueeze

SOFT_TOKENS = 280
"""Tokens of an image at most: the default of its processor (`max_soft_tokens`), which the published models have."""


class Gemma4Spec(MultimodalSpec):
    """Without `audio_config` it hears nothing."""

    seen_whole_in_vllm = ("",)
    runs = True
    window_pool = SGLANG
    patches_images = True
    kinds = {"text_config": "gemma4_text", "vision_config": "gemma4_vision", "audio_config": "gemma4_audio"}
    fixed = ("text_config", "vision_config", "audio_config")
    towers = ("gemma4_vision",)
    languages = ("gemma4_text",)
    text_class = Gemma4TextSpec
    audio_class: ClassVar[type[ModelSpec]] = Gemma4AudioSpec

    text_config: SerializeAsAny[Gemma4TextSpec]
    vision_config: SerializeAsAny[Gemma4VisionSpec]
    audio_config: SerializeAsAny[Gemma4AudioSpec] | None = None
    tie_word_embeddings: bool = True

    @model_validator(mode="before")
    @classmethod
    def _audio(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not isinstance(said := given.get("audio_config"), Mapping):
            return given
        return {**given, "audio_config": part(said, "audio_config", cls.kinds["audio_config"], True, cls.audio_class)}

    @property
    def most_patches(self) -> int:
        """Patches that every image is filled up to."""
        return SOFT_TOKENS * self.vision_config.pooling_kernel_size**2

    @property
    def kept_inputs(self) -> int:
        return self.text_config.num_hidden_layers * self.text_config.hidden_size_per_layer_input

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

    def image_tokens(self, images: Images) -> int | None:
        columns, rows = self.image_grid(images.width, images.height)
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


HEAD = "lm_head.weight"
"""What stands after all parts of the body."""


class Sight:
    """`Gemma4Model.get_image_features`: the tower, a norm and a linear layer."""

    def __init__(self, spec: Gemma4Spec, tower: VisionModel, build: Builder):
        self.tower, self.patches, self.numbers = tower, spec.most_patches, spec.vision_config.patch_numbers
        self.embedder = Embedder(build, "embed_vision", spec.vision_config.hidden_size, spec.text_config.hidden_size)
        images = build.images
        self.tokens = 0 if images is None else spec.image_tokens(images) or 0

    def inputs(self, tape: Tape, images: int) -> tuple[Tensor, Tensor]:
        """Patches of so many images, and the place of each."""
        pixels = empty(tape, (images, self.patches, self.numbers), dtypes.float32, "pixel_values")
        return pixels, empty(tape, (images, self.patches, 2), dtypes.int64, "image_position_ids")

    def __call__(self, pixels: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """The features of all images' tokens, and what the tower gave of them."""
        last = self.tower.see(pixels, places, self.tokens)
        features = self.embedder(last)
        inside = marked(places)
        del inside
        return features, last


class Gemma4(ImageTextToText):
    """The whole model (`Gemma4ForConditionalGeneration`). `language`: whose logits may go through a tanh."""

    def __init__(self, spec: Gemma4Spec, language: CausalLM, sight: Sight | None, build: Builder, held: object):
        super().__init__(language, None, build, held=held)
        assert isinstance(language.body, Gemma4Body)
        self.body: Gemma4Body = language.body
        self.spec, self.logits, self.eyes, self.attention = spec.text_config, language.logits, sight, build.attention

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Token ids, which are the labels too; of images their patches, the places of these, and which tokens are of images."""
        ids = empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids")
        if self.images is None:
            return (ids,)
        assert self.eyes is not None
        seen = self.eyes.inputs(tape, batch.sequences * self.images.count)
        return (ids, *seen, empty(tape, ids.shape, dtypes.int64, "mm_token_type_ids"))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids = inputs[0]
        hidden, *features = self._states(*inputs)
        with ids.tape.losing():
            if self.loss.fused is not None:
                return self.loss.fused(hidden, self.lm_head.weight, ids), tuple(features)
            logits = self.logits(hidden)
            return self.loss(logits, ids), (logits, *features)

    def _states(
        self, ids: Tensor, pixels: Tensor | None = None, places: Tensor | None = None, types: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Last hidden states, and the images' features, which the output holds (`Gemma4Model.forward`)."""
        tape = ids.tape
        told = [empty(tape, ids.shape, dtypes.bool_, "eq") for _ in ("image", "video", "audio")]
        either = empty(tape, ids.shape, dtypes.bool_, "bitwise_or")
        special = empty(tape, ids.shape, dtypes.bool_, "bitwise_or")
        del either
        copy = empty(tape, ids.shape, dtypes.int64, "clone")
        words = empty(tape, ids.shape, dtypes.int64, "where")
        del copy
        embeds = self.body.embed_tokens(words)
        by_id = padded = seen = blocks = number = None
        if self.body.per_layer is not None:
            padded = where_either(unsqueeze(special, 2), reshape(select(self.body.embed_tokens.weight, 0), (1, 1, -1)), embeds)
            by_id = self.body.per_layer.by_id(words)
        features: tuple[Tensor, ...] = ()
        if pixels is not None and places is not None and self.eyes is not None:
            seen = self.eyes(pixels, places)
            features = (to(cat((seen[0],), 0), embeds.dtype),)
            number = empty(tape, (), dtypes.int64, "sum")
            compare(embeds, features[0])
            embeds = masked_scatter(embeds, unsqueeze(told[0], 2), features[0])
        positions = token_positions(tape, ids.shape[1])
        masks = None
        if (written := self._written(embeds, types)) is not None:
            blocks, masks = written
        hidden = self.body.forward(words, embeds, masks, by_id, positions)
        del told, special, padded, seen, written, blocks, masks, number
        return (hidden, *features)

    def _written(self, embeds: Tensor, types: Tensor | None) -> tuple[Tensor, Masks] | None:
        """The number of the image that each token is of, and masks made of it, where the language model makes none itself.

        Tokens of an image see each other in layers with a window alone (`create_masks_for_vision_model`).
        """
        if types is None or self.spec.use_bidirectional_attention != "vision":
            return None
        blocks = _blocks(types)
        batch, tokens, _ = embeds.shape
        full = causal_mask(embeds.tape, batch, tokens, embeds.dtype, self.attention, None)
        return blocks, {FULL: full, SLIDING: as_asked(in_window(blocks), embeds.dtype, self.attention)}


def _blocks(types: Tensor) -> Tensor:
    """The number of the image that each token is of (`get_block_sequence_ids_for_mask`)."""
    tape, shape = types.tape, types.shape
    one, other = (empty(tape, shape, dtypes.bool_, "eq") for _ in ("image", "video"))
    seen = empty(tape, shape, dtypes.bool_, "bitwise_or")
    del one, other
    before = empty(tape, shape, dtypes.bool_, "roll")
    unseen = empty(tape, shape, dtypes.bool_, "bitwise_not")
    start = empty(tape, shape, dtypes.bool_, "bitwise_and")
    del unseen
    number = empty(tape, shape, dtypes.int32, "_to_copy")
    counted = empty(tape, shape, dtypes.int64, "cumsum")
    del number
    groups = empty(tape, shape, dtypes.int64, "sub")
    del counted
    made = empty(tape, shape, dtypes.int64, "where")
    del seen, before, start, groups
    return made


def gemma4(spec: Gemma4Spec, build: Builder) -> Gemma4:
    held: list[object] = []
    learns = build.images is not None
    with build.part("model.vision_tower", learns):
        tower = VisionModel(spec.vision_config, build)
    language = language_model(spec, build)
    if spec.audio_config is not None:
        with build.part("model.audio_tower", learns=False):
            held.append(audio_model(spec.audio_config, build))
    with build.part("model", learns), build.ahead(HEAD):
        sight = Sight(spec, tower, build)
    if spec.audio_config is not None:
        with build.part("model", learns=False), build.ahead(HEAD):
            held.append(Embedder(build, "embed_audio", spec.audio_config.output_proj_dims, spec.text_config.hidden_size))
    return Gemma4(spec, language, sight, build, held)


HEADS = {"image-text-to-text": gemma4}
