"""LFM2-VL: LFM2 that gets squares of an image's patches, side by side, through two linear layers.

An image is cut into tiles where it is large, and comes once more as a whole; patches of each are filled up to so many. After
transformers' modeling_lfm2_vl.py and image_processing_lfm2_vl.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, sqrt
from typing import Any

from pydantic import model_validator

from estimator.contract.job.images import Images
from estimator.families.build import Builder
from estimator.families.heads import Batch, Model
from estimator.families.image_text import ImageTextToText, language_model
from estimator.families.model_output import Held
from estimator.families.modules import ACTIVATIONS
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.siglip2 import Grid, Siglip2VisionSpec, VisionModel
from estimator.families.spec import Activation, Size
from estimator.families.towers import unshuffled
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, narrow, reshape, select, unsqueeze

TILES = 2, 10
"""The least and the most tiles that an image is cut into: the default of its processor, as the published models have it."""
TOKENS = 64, 256
"""Tokens that an image that is not cut becomes, at least and at most."""
TILE = 512
"""Pixels along a tile's side."""
TOLERANCE = 2.0
"""How many times the most pixels an image may have without being cut."""


class Lfm2VlSpec(MultimodalSpec):
    """`downsample_factor`: patches along the side of a square."""

    seen_whole_in_vllm = ("multi_modal_projector",)
    runs = True
    kinds = {"text_config": "lfm2", "vision_config": "siglip2_vision_model"}
    towers = ("siglip2_vision_model",)
    languages = ("lfm2", "lfm2_moe")

    downsample_factor: Size = 2
    projector_hidden_act: Activation = "gelu"
    projector_hidden_size: Size = 2560
    projector_bias: bool = True
    projector_use_layernorm: bool = True
    tie_word_embeddings: bool = True

    @model_validator(mode="before")
    @classmethod
    def _tied(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "tie_embedding" not in given:
            return given
        made = dict(given)
        return {**made, "tie_word_embeddings": made.pop("tie_embedding")}

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"tie_embedding"}

    @property
    def most_patches(self) -> int:
        """Patches that those of a tile are filled up to."""
        return max(TOKENS[1] * self.downsample_factor**2, (TILE // self.vision_config.patch_size) ** 2)

    def grids(self, images: Images) -> list[Grid]:
        """Rows and columns of patches of each tile of an image, and of the whole one (`resize_and_split`)."""
        patch, square = self.vision_config.patch_size, self.vision_config.patch_size * self.downsample_factor
        whole = tuple([side // patch for side in fitted(images.height, images.width, square)])
        most = TOKENS[1] * square**2 * TOLERANCE
        height, width = (max(patch, round(side / square) * square) for side in (images.height, images.width))
        if height * width <= most:
            return [(whole[0], whole[1])]
        columns, rows = closest(images.height, images.width)
        return [(TILE // patch, TILE // patch)] * (columns * rows) + [(whole[0], whole[1])]

    def image_tokens(self, images: Images) -> int | None:
        """Those that stand for squares; what its processor sets around tiles is text."""
        if TILE % (self.vision_config.patch_size * self.downsample_factor):
            return None
        return sum(rows * columns for rows, columns in self.grids(images)) // self.downsample_factor**2


SPECS = {"lfm2_vl": Lfm2VlSpec}


def fitted(height: int, width: int, square: int) -> tuple[int, int]:
    """Height and width, in whole squares, that an image is resized to, so that it becomes as many tokens as it may
    (`smart_resize`)."""
    least, most = (tokens * square**2 for tokens in TOKENS)
    tall, wide = (max(square, round(side / square) * square) for side in (height, width))
    if tall * wide > most:
        ratio = sqrt(height * width / most)
        return max(square, floor(height / ratio / square) * square), max(square, floor(width / ratio / square) * square)
    if tall * wide < least:
        ratio = sqrt(least / (height * width))
        return ceil(height * ratio / square) * square, ceil(width * ratio / square) * square
    return tall, wide


def closest(height: int, width: int) -> Grid:
    """Columns and rows of tiles whose proportions are closest to an image's; of several equal ones the last that the image fills
    by more than half (`find_closest_aspect_ratio`)."""
    fewest, most = TILES
    grids = [(c, r) for c in range(1, most + 1) for r in range(1, most + 1) if fewest <= c * r <= most]
    best, least = (1, 1), float("inf")
    for grid in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        away = abs(width / height - grid[0] / grid[1])
        if away < least or (away == least and width * height > TILE**2 * grid[0] * grid[1] / 2):
            best, least = grid, away
    return best


def between(spec: Lfm2VlSpec, build: Builder) -> None:
    """What is between the tower and the language model."""
    Projector(spec, build)


class Projector:
    """Squares of patches side by side, a norm, and two linear layers (`Lfm2VlMultiModalProjector`)."""

    def __init__(self, spec: Lfm2VlSpec, build: Builder):
        self.factor, name, bias = spec.downsample_factor, "multi_modal_projector.", spec.projector_bias
        seen = spec.vision_config.hidden_size * self.factor**2
        self.norm = build.layer_norm(name + "layer_norm", seen) if spec.projector_use_layernorm else None
        self.linear_1 = build.linear(name + "linear_1", seen, spec.projector_hidden_size, bias)
        self.act = ACTIVATIONS[spec.projector_hidden_act]
        self.linear_2 = build.linear(name + "linear_2", spec.projector_hidden_size, spec.text_config.hidden_size, bias)

    def __call__(self, features: Tensor) -> Tensor:
        seen = unshuffled(features, self.factor)
        if self.norm:
            seen = self.norm(seen)
        hidden = self.linear_1(seen)
        hidden = self.act(hidden)
        return self.linear_2(hidden)


class Sight:
    """`Lfm2VlModel.get_image_features`: all tiles in one row, the tower, and the real patches of each through the projector."""

    def __init__(self, spec: Lfm2VlSpec, build: Builder):
        learns, tower = build.images is not None, spec.vision_config
        assert isinstance(tower, Siglip2VisionSpec)
        self.most, self.numbers = spec.most_patches, tower.patch_numbers
        self.grids = [] if build.images is None else spec.grids(build.images)
        with build.part("model.vision_tower", learns):
            self.tower = VisionModel(tower, build)
        with build.part("model", learns):
            self.projector = Projector(spec, build)

    def pixels(self, tape: Tape, images: int) -> Tensor:
        """The patches of so many images, [tiles, patches, numbers]."""
        return empty(tape, (images * len(self.grids), self.most, self.numbers), dtypes.float32, "pixel_values")

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Each tile's features, and the tower's last hidden states."""
        grids = self.grids * (pixels.shape[0] // len(self.grids))
        last = self.tower.see(pixels, grids)
        lengths = empty(pixels.tape, (len(grids),), dtypes.int64, "sum")
        features = [self._projected(last, grid) for grid in grids]
        del lengths
        return (*features, last)

    def _projected(self, last: Tensor, grid: Grid) -> Tensor:
        rows, columns = grid
        real = reshape(unsqueeze(narrow(select(last, 0), 0, rows * columns), 0), (1, rows, columns, last.shape[-1]))
        features = self.projector(real)
        return reshape(features, (-1, features.shape[-1]))


class PaddedPatches(ImageTextToText):
    """A batch says which patches are real, and how many rows and columns of each tile."""

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        made = super().inputs(tape, batch, dtype)
        if self.images is None:
            return made
        tiles, patches, _ = made[1].shape
        shapes = empty(tape, (tiles, 2), dtypes.int64, "spatial_shapes")
        return *made, shapes, empty(tape, (tiles, patches), dtypes.int32, "pixel_attention_mask")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        return super().forward(*inputs[:2])


def lfm2_vl(spec: Lfm2VlSpec, build: Builder) -> Model:
    """The whole model (`Lfm2VlForConditionalGeneration`)."""
    sight = Sight(spec, build)
    language = language_model(spec, build)
    return PaddedPatches(language, sight, build, lambda seen: cat(seen[:-1], 0))


HEADS = multimodal(between, lfm2_vl)
