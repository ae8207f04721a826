"""InternVL: a language model that gets squares of an image's patches through two linear layers.

An image is cut into tiles, and comes once more as a whole, in the size of a tile. After transformers' modeling_internvl.py,
processing_internvl.py and image_processing_got_ocr2.py (5.23).
"""

from __future__ import annotations

from math import isqrt
from typing import Annotated

from pydantic import Field

from estimator.contract.job.images import Images
from estimator.families.build import Builder
from estimator.families.heads import Model
from estimator.families.image_text import ImageTextToText, language_model
from estimator.families.internvl_vision import InternVLVisionSpec, VisionModel
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.tape.pointwise import gelu, to
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor
from estimator.tape.views import contiguous, narrow, permute, reshape

MOST_TILES = 12
"""Tiles that an image is cut into at most, without the whole one (`max_patches` of `GotOcr2ImageProcessor`)."""


class InternVLSpec(MultimodalSpec):
    """`downsample_ratio`: of the side of what the tower gives, to that of what the language model gets."""

    seen_whole_in_vllm = ("multi_modal_projector",)
    runs = True
    in_sglang = "transformers"
    tiles_by_text = False
    towers = ("internvl_vision",)
    languages = ("llama", "qwen2", "qwen3")
    modelled = {
        "projector_hidden_act": ("gelu",),
        "vision_feature_layer": (-1,),
        "vision_feature_select_strategy": ("default",),
    }

    kinds = {"text_config": "qwen2", "vision_config": "internvl_vision"}
    fixed = ("vision_config",)

    downsample_ratio: Annotated[float, Field(gt=0, le=1)] = 0.5
    tie_word_embeddings: bool = True

    @property
    def factor(self) -> int:
        """Patches along the side of a square."""
        return int(1 / self.downsample_ratio)

    @property
    def tower(self) -> InternVLVisionSpec:
        assert isinstance(self.vision_config, InternVLVisionSpec)
        return self.vision_config

    def tiles(self, images: Images) -> int:
        """Tiles of an image, the whole one among them."""
        columns, rows = cut(images.height, images.width, self.tower.image_size)
        return rows * columns + (rows * columns > 1)

    def image_tokens(self, images: Images) -> int | None:
        """Those that stand for tiles; the two that its processor sets around an image are text."""
        squares = isqrt(self.tower.patches) % self.factor == 0 and self.factor * self.downsample_ratio == 1
        return self.tiles(images) * (self.tower.patches // self.factor**2) if squares else None


SPECS = {"internvl": InternVLSpec}


def cut(height: int, width: int, side: int) -> tuple[int, int]:
    """Columns and rows of tiles of `side` pixels that an image is cut into: of all that are at most `MOST_TILES` those nearest to
    its proportions, and of several more tiles while the image has half their pixels (`get_optimal_tiled_canvas`)."""
    grids = [(c, r) for c in range(1, MOST_TILES + 1) for r in range(1, MOST_TILES + 1) if c * r <= MOST_TILES]
    best, least = (1, 1), float("inf")
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        off = abs(width / height - columns / rows)
        if off < least or (off == least and width * height > 0.5 * side * side * columns * rows):
            best, least = (columns, rows), off
    return best


class Projector:
    """A norm and two linear layers (`InternVLMultiModalProjector`)."""

    def __init__(self, spec: InternVLSpec, build: Builder):
        read, seen = spec.text_config.hidden_size, spec.vision_config.hidden_size * spec.factor**2
        self.layer_norm = build.layer_norm("multi_modal_projector.layer_norm", seen)
        self.linear_1 = build.linear("multi_modal_projector.linear_1", seen, read, True)
        self.linear_2 = build.linear("multi_modal_projector.linear_2", read, read, True)

    def __call__(self, features: Tensor) -> Tensor:
        hidden = self.layer_norm(features)
        hidden = self.linear_1(hidden)
        hidden = gelu(hidden)
        return self.linear_2(hidden)


class Sight:
    """`InternVLModel.get_image_features`: tiles without the class token, squares of patches side by side, and the projector."""

    def __init__(self, spec: InternVLSpec, build: Builder):
        self.square, self.factor, learns = spec.tower, spec.factor, build.images is not None
        self.tiles = 0 if build.images is None else spec.tiles(build.images)
        with build.part("model.vision_tower", learns):
            self.tower = VisionModel(spec.tower, build)
        with build.part("model", learns):
            self.projector = Projector(spec, build)

    def pixels(self, tape: Tape, images: int) -> Tensor:
        return self.square.given(tape, images * self.tiles)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """The features, and the tower's last hidden states."""
        pixels = to(pixels, self.tower.cls_token.dtype)
        last, hidden = self.tower.see(pixels)
        features = narrow(last, 1, last.shape[1] - 1)
        features = self._shuffled(features)
        return self.projector(features), last, hidden

    def _shuffled(self, seen: Tensor) -> Tensor:
        """Squares of patches as one row each, [tiles, squares, width] (`pixel_shuffle`)."""
        tiles, patches, size = seen.shape
        side, factor = isqrt(patches), self.factor
        x = reshape(seen, (tiles, side, side // factor, size * factor))
        x = contiguous(permute(x, (0, 2, 1, 3)))
        x = reshape(x, (tiles, side // factor, side // factor, size * factor**2))
        x = contiguous(permute(x, (0, 2, 1, 3)))
        return reshape(x, (tiles, patches // factor**2, size * factor**2))


def internvl(spec: InternVLSpec, build: Builder) -> Model:
    """The whole model (`InternVLForConditionalGeneration`)."""
    sight = Sight(spec, build)
    language = language_model(spec, build)
    return ImageTextToText(language, sight, build)


HEADS = multimodal(Projector, internvl)
