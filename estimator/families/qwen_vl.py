"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: language models of the Qwen kind that see images and films.

After transformers' modeling_qwen2_vl.py, modeling_qwen2_5_vl.py, modeling_qwen3_vl.py and modeling_qwen3_vl_moe.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil, floor, sqrt
from typing import Any, ClassVar, Protocol

from pydantic import model_validator

from estimator.contract.errors import Contradiction
from estimator.contract.job.images import Images
from estimator.families import spec_class
from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.decoder import After, Decoder
from estimator.families.heads import Batch, CausalLM, FusedHead
from estimator.families.image_text import ImageTextToText, by_image
from estimator.families.llama import Qwen2Spec, Qwen3Spec
from estimator.families.model_output import Held
from estimator.families.modules import Convolution
from estimator.families.parts import MultimodalSpec
from estimator.families.qwen_vl_text import Kind, decoder
from estimator.families.qwen_vl_tower import VisionModel
from estimator.families.qwen_vl_vision import VisionSpec
from estimator.families.spec import ModelSpec
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, to
from estimator.tape.scatter import masked_scatter, picked, write_picked
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, clone, unsqueeze


class Spec(MultimodalSpec):
    """What the three have in common: parts that are of one type each, whatever their configurations name."""

    runs = resizes = tells_images_apart = True
    bounds: ClassVar[tuple[int, int]] = (56 * 56, 28 * 28 * 16384)
    """Pixels that an image has at least and at most unless a processor is told otherwise: as the published models'
    preprocessor_config.json say."""
    fixed: ClassVar[tuple[str, ...]] = ("text_config", "vision_config")
    looks_for_films: ClassVar[bool] = True
    """Whether the places of films are looked for beside those of images."""
    plain: ClassVar[str]
    """The family that the language model is of, but for its rotary positions in three dimensions."""

    @property
    def alone(self) -> ModelSpec:
        family = spec_class(self.plain)
        return family.model_validate({**self.language_model.model_dump(), "model_type": self.plain})

    @property
    def vision(self) -> VisionSpec:
        """The tower."""
        assert isinstance(self.vision_config, VisionSpec)
        return self.vision_config

    @property
    def picture(self) -> Picture | None:
        tower, patch = self.vision, self.vision.patch_size
        patches = self.bounds[1] // patch**2
        numbers = patches * tower.num_channels * tower.temporal_patch_size * patch**2
        return Picture(patches // tower.spatial_merge_size**2, numbers, 1 + len(tower.read))

    def grid(self, images: Images) -> tuple[int, int]:
        """Rows and columns of patches of an image."""
        patch, merge = self.vision.patch_size, self.vision.spatial_merge_size
        least, most = images.min_pixels or self.bounds[0], images.max_pixels or self.bounds[1]
        height, width = resized(images.height, images.width, patch * merge, least, most)
        return height // patch, width // patch

    def image_tokens(self, images: Images) -> int | None:
        rows, columns = self.grid(images)
        return rows * columns // self.vision.spatial_merge_size**2


class Qwen2VLSpec(Spec):
    """Older configurations say outside what `text_config` says."""

    plain = "qwen2"
    kinds = {"text_config": "qwen2_vl_text", "vision_config": "qwen2_vl_vision"}
    towers, languages = ("qwen2_vl_vision",), ("qwen2_vl_text",)

    @property
    def tied(self) -> bool:
        return self.tie_word_embeddings or self.text_config.tie_word_embeddings

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        outside = {name: value for name, value in given.items() if name in cls._outside()}
        inside = {name: value for name, value in given.items() if name not in outside}
        return inside if inside.get("text_config") is not None else inside | {"text_config": outside}

    @classmethod
    def _outside(cls) -> set[str]:
        return spec_class(cls.kinds["text_config"]).keys() - {"model_type", "tie_word_embeddings"}

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | cls._outside()


class Qwen25VLSpec(Qwen2VLSpec):
    kinds = {"text_config": "qwen2_5_vl_text", "vision_config": "qwen2_5_vl_vision"}
    towers, languages = ("qwen2_5_vl_vision",), ("qwen2_5_vl_text",)


class Qwen3VLSpec(Spec):
    plain = "qwen3"
    bounds = (256 * 256, 4096 * 4096)
    kinds = {"text_config": "qwen3_vl_text", "vision_config": "qwen3_vl_vision"}
    towers, languages = ("qwen3_vl_vision",), ("qwen3_vl_text",)


class Qwen3VLMoeSpec(Qwen3VLSpec):
    """With experts in the language model."""

    plain = "qwen3_moe"
    kinds = {"text_config": "qwen3_vl_moe_text", "vision_config": "qwen3_vl_moe_vision"}
    towers, languages = ("qwen3_vl_moe_vision",), ("qwen3_vl_moe_text",)


LONGEST = 200
"""The larger of an image's sides over the smaller, at most."""


def resized(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """Height and width, in pixels, that an image is resized to: multiples of `factor` of nearly the same proportions, between
    `least` and `most` pixels together. Raises `Contradiction` for an image that is too long.

    After image_processing_qwen2_vl.py (`smart_resize`).
    """
    if max(height, width) > LONGEST * min(height, width):
        longest = f"its processor takes sides of at most {LONGEST} to 1"
        raise Contradiction(f"an image of {width} x {height} pixels is too long: {longest}", "training.images")
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if tall * wide > most:
        ratio = sqrt(height * width / most)
        return max(1, floor(height / ratio / factor)) * factor, max(1, floor(width / ratio / factor)) * factor
    if tall * wide < least:
        ratio = sqrt(least / (height * width))
        return ceil(height * ratio / factor) * factor, ceil(width * ratio / factor) * factor
    return tall, wide


SPECS = {"qwen2_vl": Qwen2VLSpec, "qwen2_5_vl": Qwen25VLSpec, "qwen3_vl": Qwen3VLSpec, "qwen3_vl_moe": Qwen3VLMoeSpec}


class Tower(Protocol):
    """An encoder of images' patches, which lie in one row."""

    @property
    def proj(self) -> Convolution:
        """What embeds patches."""

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Last hidden states; what the language model gets of them; and of the layers that it reads, too."""


class QwenVL(FusedHead):
    """The whole model (`Qwen2_5_VLForConditionalGeneration`), on texts with images."""

    def __init__(self, spec: Spec, tower: Tower, language: CausalLM, build: Builder):
        assert isinstance(language.body, Decoder)
        assert build.images is not None
        self.spec, self.tower, self.images = spec, tower, build.images
        self.body, self.lm_head, self.loss = language.body, language.lm_head, language.loss
        self.deltas = build.buffer("rope_deltas", (build.sequences, 1), dtypes.int64)
        """Of each sequence, by how much its last position differs from its length; those of the last step stay with the model."""

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Token ids, which are the labels too; patches; rows and columns of each image; which tokens are of images."""
        tower, images = self.spec.vision, batch.sequences * self.images.count
        ids = empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids")
        rows, columns = self.spec.grid(self.images)
        pixels = empty(tape, (images * rows * columns, *tower.patch_shape), dtypes.float32, "pixel_values")
        grids = empty(tape, (images, 3), dtypes.int64, "image_grid_thw")
        return ids, pixels, grids, empty(tape, ids.shape, dtypes.int64, "mm_token_type_ids")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids = inputs[0]
        hidden = self._read(ids, inputs[1])
        with ids.tape.losing():
            if self.loss.fused is not None:
                return self.loss.fused(hidden, self.lm_head.weight, ids), ()
            logits = self.lm_head(hidden)
            return self.loss(logits, ids), logits

    def _read(self, ids: Tensor, pixels: Tensor) -> Tensor:
        """Last hidden states. What the tower gave lives until they are there."""
        tape = ids.tape
        embeds = self.body.embed_tokens(ids)
        last, seen, *read = self._see(pixels)
        features = to(cat(seen, 0), embeds.dtype)
        places = empty(tape, ids.shape, dtypes.bool_, "eq")
        films = empty(tape, ids.shape, dtypes.bool_, "eq") if self.spec.looks_for_films else None
        embeds = masked_scatter(embeds, unsqueeze(places, 2), features)
        joined = [cat(parts, 0) for parts in read]
        positions = empty(tape, (3, *ids.shape), dtypes.int64, "zeros")
        self.deltas = empty(tape, (ids.shape[0], 1), dtypes.int64, "_to_copy")
        hidden = self.body.decode(ids, embeds, positions=positions, after=added(places, joined))
        del last, seen, read, features, films, joined
        return hidden

    def _see(self, pixels: Tensor) -> tuple[Any, ...]:
        """`get_image_features`: the tower's last hidden states, and of each image what the language model gets."""
        cast = to(pixels, self.tower.proj.weight.dtype)
        last, *given = self.tower(cast)
        rows, columns = self.spec.grid(self.images)
        each = rows * columns // self.spec.vision.spatial_merge_size**2
        return last, *[by_image(part, each) for part in given]


def added(places: Tensor, joined: Sequence[Tensor]) -> After | None:
    """What is done after the first layers of the language model: a layer of the tower is added where images are
    (`_deepstack_process`)."""
    if not joined:
        return None

    def after(kind: Kind, hidden: Tensor) -> Tensor:
        if kind.place is None or kind.place >= len(joined):
            return hidden
        return _with_images(hidden, places, joined[kind.place])

    return after


def _with_images(hidden: Tensor, places: Tensor, features: Tensor) -> Tensor:
    given = to(features, hidden.dtype)
    out = clone(hidden)
    there = add(picked(out, places, given.shape), given)
    return write_picked(out, places, there)


MakeTower = Callable[[tuple[int, int] | None], Tower]
"""Rows and columns of patches of each image, if there are any -> the tower."""


def whole(
    spec: Spec, build: Builder, make: Callable[[], CausalLM], make_tower: MakeTower | None = None
) -> ImageTextToText | QwenVL:
    """A tower, and the language model that `make` makes after it. Without `make_tower` that is Qwen's
    own."""
    images, make_tower = build.images, make_tower or partial(VisionModel, spec.vision, build)
    with build.part("model.visual", learns=images is not None):
        tower = make_tower(None if images is None else spec.grid(images))
    with build.part("model.language_model"):
        language = make()
    return ImageTextToText(language, None, build, held=tower) if images is None else QwenVL(spec, tower, language, build)


def qwen_vl(spec: Spec, build: Builder) -> ImageTextToText | QwenVL:
    """The whole model (`Qwen2_5_VLForConditionalGeneration`)."""

    def language() -> CausalLM:
        text = spec.alone
        assert isinstance(text, Qwen2Spec | Qwen3Spec)
        return CausalLM(decoder(text, build, 0 if build.images is None else len(spec.vision.read)), text, build)

    return whole(spec, build, language)


HEADS = {"image-text-to-text": qwen_vl}
