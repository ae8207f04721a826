"""LLaVA-NeXT and LLaVA-OneVision: LLaVA that gets an image as a whole and in tiles, put together again without what only pads.

After transformers' modeling_llava_next.py, modeling_llava_onevision.py, their processors, and image_processing_utils.py (5.23).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from estimator.contract.errors import Contradiction
from estimator.contract.job.images import Images
from estimator.families import llava
from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.clip_vision import CLIPVisionSpec, vision_model
from estimator.families.heads import Batch, Model
from estimator.families.image_text import ImageTextToText, language_model
from estimator.families.llava import LlavaSpec, Projector, joined
from estimator.families.model_output import Held
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.siglip import SiglipVisionSpec, VisionModel
from estimator.families.spec import Size
from estimator.families.towers import SquareTowerSpec
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import to
from estimator.tape.pooling import bilinear
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, contiguous, expand, narrow, permute, reshape, select, split, transpose, unbind, unsqueeze

Resolutions = Annotated[tuple[tuple[Size, Size], ...], Field(min_length=1, max_length=1000)]
"""Heights and widths, in pixels."""


class LlavaNextSpec(LlavaSpec):
    """`image_grid_pinpoints`: heights and widths, in pixels, that an image may be resized to."""

    runs = True
    in_sglang = "transformers"
    towers: ClassVar[tuple[str, ...]] = ("clip_vision_model", "siglip_vision_model")
    languages = (*LlavaSpec.languages, "granite")
    tiles_by_text, tiles_by_image = False, True
    pools = True

    image_grid_pinpoints: Resolutions = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))

    @property
    def picture(self) -> Picture | None:
        tokens = self.image_tokens(self.largest) if isinstance(self.vision_config, SquareTowerSpec) else None
        if tokens is None:
            return None
        tiles = self.tiles(self.largest) or 1
        return Picture(tokens, tiles * self.square.pixels, patches=tiles * self.square.patches)

    @property
    def largest(self) -> Images:
        """The image of most tokens, by which vLLM profiles (models/llava_next.py, `get_image_size_with_most_features`)."""
        sizes = [Images(width=wide, height=tall) for tall, wide in self.image_grid_pinpoints]
        return max(sizes, key=lambda size: self.image_tokens(size) or 0)

    @property
    def tied(self) -> bool:
        return self.tie_word_embeddings

    @property
    def square(self) -> SquareTowerSpec:
        assert isinstance(self.vision_config, SquareTowerSpec)
        return self.vision_config

    @property
    def across(self) -> int:
        """Patches along the side of a tile."""
        return self.square.image_size // self.square.patch_size

    def grid_of_tiles(self, images: Images) -> tuple[int, int]:
        """Rows and columns of tiles that an image is cut into. Raises `Contradiction` where no tiles fill it."""
        height, width = best_resolution(images.height, images.width, self.image_grid_pinpoints)
        side = self.square.image_size
        if height % side or width % side:
            raise Contradiction(
                f"image_grid_pinpoints has {height} x {width}, no whole number of tiles: write multiples of {side}",
                "model.image_grid_pinpoints",
            )
        return height // side, width // side

    def tiles(self, images: Images) -> int | None:
        """Tiles of an image, the whole one among them."""
        rows, columns = self.grid_of_tiles(images)
        return rows * columns + 1

    def unpadded(self, images: Images) -> tuple[int, int]:
        """Rows and columns of patches of an image in tiles that do not only pad."""
        rows, columns = (self.across * tiles for tiles in self.grid_of_tiles(images))
        return unpadded(images.height, images.width, rows, columns)

    def image_tokens(self, images: Images) -> int | None:
        """The whole image's patches, those of its tiles, and one at the end of each of their rows."""
        classed = self.vision_feature_select_strategy == "default"  # whether what is left out is the class token
        if not isinstance(self.vision_config, SquareTowerSpec) or classed != isinstance(self.vision_config, CLIPVisionSpec):
            return None
        return self.square.patches + self.whole(images, *self.unpadded(images))

    def whole(self, images: Images, rows: int, columns: int) -> int:
        """Tokens of an image's tiles, one at the end of each row among them. Raises `Contradiction` if none is left."""
        if not rows * columns:
            said = f"an image of {images.width} x {images.height} pixels is too long: its processor leaves nothing of its tiles"
            raise Contradiction(said, "training.images")
        return rows * (columns + 1)


class LlavaOnevisionSpec(LlavaNextSpec):
    """`vision_aspect_ratio`: an image of more patches than so many whole ones have is made smaller. Of several images in a text
    each comes as a whole only."""

    runs, counts_images = True, True
    kinds = {"text_config": "qwen2", "vision_config": "siglip_vision_model"}
    towers = ("siglip_vision_model",)

    vision_feature_layer: int | tuple[int, ...] = -1
    vision_feature_select_strategy: Literal["default", "full"] = "full"
    vision_aspect_ratio: Annotated[str, Field(pattern=r"^anyres_max_[1-9]\d{0,3}$")] = "anyres_max_9"
    image_grid_pinpoints: Resolutions = tuple((384 * rows, 384 * columns) for rows in range(1, 7) for columns in range(1, 7))

    @property
    def tied(self) -> bool:
        return self.tie_word_embeddings or self.text_config.tie_word_embeddings

    @property
    def largest(self) -> Images:
        """Of a size that vLLM has found by trial (models/llava_onevision.py, `get_image_size_with_most_features`)."""
        return Images(width=1153, height=944)

    def tiles(self, images: Images) -> int | None:
        return 1 if images.count > 1 else super().tiles(images)

    def shrunk(self, images: Images) -> tuple[int, int] | None:
        """Rows and columns of patches of an image that is made smaller; None of one that is not."""
        rows, columns = self.unpadded(images)
        most = int(self.vision_aspect_ratio.removeprefix("anyres_max_")) * self.across**2
        ratio = sqrt(rows * columns / most)
        return (int(rows // ratio), int(columns // ratio)) if ratio > SLACK else None

    def image_tokens(self, images: Images) -> int | None:
        if not isinstance(self.vision_config, SquareTowerSpec) or self.vision_feature_select_strategy == "default":
            return None
        if images.count > 1:
            return self.square.patches + 1
        rows, columns = self.shrunk(images) or self.unpadded(images)
        return self.square.patches + self.whole(images, rows, columns)


SLACK = 1.1
"""By how much an image's sides may be too long before it is made smaller."""
SPECS: dict[str, type[MultimodalSpec]] = {"llava_next": LlavaNextSpec, "llava_onevision": LlavaOnevisionSpec}


def best_resolution(height: int, width: int, possible: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Of some heights and widths those that keep most of an image's pixels, and of several the smallest
    (`select_best_resolution`)."""
    best, most, least = possible[0], 0, float("inf")
    for tall, wide in possible:
        scale = min(wide / width, tall / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        wasted = wide * tall - kept
        if kept > most or (kept == most and wasted < least):
            best, most, least = (tall, wide), kept, wasted
    return best


def unpadded(height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a grid that an image of that height and width fills, its proportions kept (`unpad_image`)."""
    if width / height > columns / rows:
        return rows - (rows - int(round(height * (columns / width), 7))) // 2 * 2, columns
    return rows, columns - (columns - int(round(width * (rows / height), 7))) // 2 * 2


def tower_of(spec: LlavaNextSpec, build: Builder) -> llava.Tower:
    """The tower, of which the hidden states that are read are named."""
    tower = spec.vision_config
    if isinstance(tower, SiglipVisionSpec):
        return VisionModel(tower, build, spec.states)
    assert isinstance(tower, CLIPVisionSpec)
    return vision_model(tower, build, spec.states)


class Sight(llava.Sight):
    """`LlavaNextModel.get_image_features`: all tiles in one row, the tower, the projector; and each image put together."""

    def __init__(self, spec: LlavaNextSpec, build: Builder):
        self.newline = self._newline(spec, build)
        self.spec, self.images, self.square, self.tiled = spec, build.images, spec.square, spec
        with build.part("model.vision_tower", learns=build.images is not None):
            self.tower = tower_of(spec, build)
        with build.part("model", learns=build.images is not None):
            self.projector = Projector(spec, build)

    def _newline(self, spec: LlavaNextSpec, build: Builder) -> Tensor:
        """What stands at the end of each row."""
        with build.part("model", learns=build.images is not None):
            return build.parameter("image_newline", (spec.text_config.hidden_size,))

    def pixels(self, tape: Tape, images: int) -> Tensor:
        tower = self.square
        assert self.images is not None
        shape = (images, self.tiled.tiles(self.images) or 1, tower.num_channels, tower.image_size, tower.image_size)
        return empty(tape, shape, dtypes.float32, "pixel_values")

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Each image's features; the hidden states that were read, and the last ones."""
        images, tiles = pixels.shape[:2]
        pixels = cat(unbind(pixels, 0), 0)
        last, *states = self.tower.see(pixels)
        unread = [states.pop(0) for _ in range(len(states) - len(self.tiled.states))]
        selected = self._selected(states)
        seen = split(self.projector(selected), [tiles] * images, 0)
        packed = [self._packed(image) for image in seen]
        del unread
        return (*packed, *states, last)

    def _packed(self, image: Tensor) -> Tensor:
        """One image as a whole, and its tiles with what ends each row: [tokens, width]."""
        assert self.images is not None
        spec, width = self.tiled, image.shape[-1]
        if image.shape[0] == 1:
            return cat((select(image, 0), to(unsqueeze(self.newline, 0), image.dtype)), 0)
        whole, tiles = select(image, 0), narrow(image, 0, image.shape[0] - 1)
        (down, over), across = spec.grid_of_tiles(self.images), spec.across
        tiles = contiguous(permute(reshape(tiles, (down, over, across, across, width)), (4, 0, 2, 1, 3)))
        tiles = reshape(tiles, (width, down * across, over * across))
        rows, columns = spec.unpadded(self.images)
        tiles = narrow(tiles, 1, rows) if rows < tiles.shape[1] else narrow(tiles, 2, columns)
        if isinstance(spec, LlavaOnevisionSpec) and (smaller := spec.shrunk(self.images)):
            rows, columns = smaller
            tiles = select(bilinear(unsqueeze(tiles, 0), rows, columns), 0)
        ends = to(expand(unsqueeze(unsqueeze(self.newline, 1), 2), (width, rows, 1)), tiles.dtype)
        tiles = cat((tiles, ends), 2)
        del ends
        tiles = transpose(reshape(tiles, (width, rows * (columns + 1))), 0, 1)
        return cat((whole, tiles), 0)


def llava_next(spec: LlavaNextSpec, build: Builder) -> Model:
    """The whole model (`LlavaNextForConditionalGeneration`)."""
    sight = Sight(spec, build)
    language = language_model(spec, build)

    def sizes(ids: Tensor, pixels: Tensor) -> Tensor:
        return empty(ids.tape, (pixels.shape[0], 2), dtypes.int64, "image_sizes")

    if isinstance(spec, LlavaOnevisionSpec):
        return ManyImages(language, sight, build, joined(spec), beside=sizes, videos=True)
    return ImageTextToText(language, sight, build, joined(spec), beside=sizes)


class ManyImages(ImageTextToText):
    """A batch says how many images each text has."""

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        made = super().inputs(tape, batch, dtype)
        return made if self.images is None else (*made, empty(tape, (batch.sequences,), dtypes.int64, "batch_num_images"))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        return super().forward(*inputs[:3])


def between(spec: LlavaNextSpec, build: Builder) -> None:
    """What is between the tower and the language model."""
    build.parameter("image_newline", (spec.text_config.hidden_size,))
    Projector(spec, build)


HEADS = multimodal(between, llava_next)
