"""Aya Vision and Command A Vision: a Cohere language model that gets squares of a SigLIP tower's patches through a gated layer.

An image is cut into tiles, and comes once more as a whole, in the size of a tile. After transformers' modeling_aya_vision.py,
modeling_cohere2_vision.py, their processors, image_processing_got_ocr2.py and image_processing_cohere2_vision.py (5.23).
"""

from __future__ import annotations

from math import isqrt
from typing import Annotated, Any

from pydantic import Field

from estimator.contract.job.images import Images
from estimator.families.build import Builder
from estimator.families.heads import Model
from estimator.families.image_text import ImageTextToText, language_model
from estimator.families.internvl import MOST_TILES, cut
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.siglip import VisionModel
from estimator.families.spec import Size
from estimator.families.towers import SquareTowerSpec, unshuffled
from estimator.tape.pointwise import mul, silu
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, split

Even = Annotated[Size, Field(multiple_of=2)]


class TiledSpec(MultimodalSpec):
    """What both have in common. `downsample_factor`: patches along the side of a square that becomes one token.
    `alignment_intermediate_size`: width of what is between the tower and the language model; one half of it gates the other."""

    towers = ("siglip_vision_model",)
    languages = ("cohere", "cohere2")
    tiles_by_text = False
    kinds = {"text_config": "cohere2", "vision_config": "siglip_vision_model"}

    downsample_factor: Size = 2
    tie_word_embeddings: bool = True

    @property
    def middle(self) -> int:
        """Width between the tower and the language model."""
        raise NotImplementedError

    @property
    def tower(self) -> SquareTowerSpec:
        assert isinstance(self.vision_config, SquareTowerSpec)
        return self.vision_config

    def cut(self, images: Images) -> tuple[int, int]:
        """Columns and rows of tiles of an image."""
        raise NotImplementedError

    def tiles(self, images: Images) -> int | None:
        """Tiles of an image, the whole one among them."""
        columns, rows = self.cut(images)
        return rows * columns + (rows * columns > 1)

    def image_tokens(self, images: Images) -> int | None:
        """Those that stand for squares; what its processor sets around tiles is text."""
        if not isinstance(self.vision_config, SquareTowerSpec) or isqrt(self.tower.patches) % self.downsample_factor:
            return None
        return (self.tiles(images) or 1) * (self.tower.patches // self.downsample_factor**2)


class AyaVisionSpec(TiledSpec):
    """The tower's last hidden states are read before its last norm."""

    seen_whole_in_vllm = ("multi_modal_projector",)
    runs = True
    last_vllm = "0.24"
    in_sglang = "transformers"
    modelled = {"vision_feature_layer": (-1,), "vision_feature_select_strategy": ("full",)}

    alignment_intermediate_size: Even | None = None

    @property
    def middle(self) -> int:
        return self.alignment_intermediate_size or self.text_config.hidden_size

    def config(self) -> dict[str, Any]:
        return super().config() | {"alignment_intermediate_size": self.middle}

    def cut(self, images: Images) -> tuple[int, int]:
        return cut(images.height, images.width, self.tower.image_size)


class Cohere2VisionSpec(TiledSpec):
    runs = True

    alignment_intermediate_size: Even = 36864

    @property
    def middle(self) -> int:
        return self.alignment_intermediate_size

    def cut(self, images: Images) -> tuple[int, int]:
        return least_enlarged(images.height, images.width, self.tower.image_size)


SPECS: dict[str, type[MultimodalSpec]] = {"aya_vision": AyaVisionSpec, "cohere2_vision": Cohere2VisionSpec}


def least_enlarged(height: int, width: int, side: int) -> tuple[int, int]:
    """Columns and rows of tiles of `side` pixels that an image is cut into: of at most `MOST_TILES` those into which it fits
    enlarged least, or made smaller least where it fits into none (image_processing_cohere2_vision.py,
    `get_optimal_tiled_canvas`)."""
    grids = [(c, r) for c in range(1, MOST_TILES + 1) for r in range(1, MOST_TILES + 1) if c * r <= MOST_TILES]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    scales = {(c, r): min(c * side / width, r * side / height) for c, r in grids}
    fitting = [grid for grid in grids if scales[grid] >= 1]
    return min(fitting, key=scales.__getitem__) if fitting else max(grids, key=scales.__getitem__)


class Projector:
    """Squares of patches side by side, a norm in Aya Vision, and two linear layers with a gate between
    (`AyaVisionMultiModalProjector`, `Cohere2VisionMultiModalProjector`)."""

    def __init__(self, spec: TiledSpec, build: Builder):
        self.factor, name = spec.downsample_factor, "multi_modal_projector."
        seen = spec.vision_config.hidden_size * self.factor**2
        self.norm = build.layer_norm(name + "layernorm", seen) if isinstance(spec, AyaVisionSpec) else None
        self.linear_1 = build.linear(name + "linear_1", seen, spec.middle, True)
        self.linear_2 = build.linear(name + "linear_2", spec.middle // 2, spec.text_config.hidden_size, True)

    def __call__(self, features: Tensor) -> Tensor:
        tiles, patches, size = features.shape
        side = isqrt(patches)
        seen = unshuffled(reshape(features, (tiles, side, side, size)), self.factor)
        if self.norm:
            seen = self.norm(seen)
        hidden = self.linear_1(seen)
        half = hidden.shape[-1] // 2
        x, gate = split(hidden, (half, half), len(hidden.shape) - 1)
        hidden = mul(silu(gate), x)
        return self.linear_2(hidden)


class Sight:
    """`AyaVisionModel.get_image_features`: all tiles in one row, the tower, and what follows it."""

    def __init__(self, spec: TiledSpec, build: Builder):
        self.square, learns = spec.tower, build.images is not None
        self.tiles = 0 if build.images is None else spec.tiles(build.images) or 0
        states = (spec.tower.depth,) if isinstance(spec, AyaVisionSpec) else ()
        with build.part("model.vision_tower", learns):
            self.tower = VisionModel(spec.tower, build, states)
        with build.part("model", learns):
            self.projector = Projector(spec, build)

    def pixels(self, tape: Tape, images: int) -> Tensor:
        return self.square.given(tape, images * self.tiles)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """The features, the hidden states that were read where those are not the last ones, and the last ones."""
        last, *states = self.tower.see(pixels)
        features = self.projector(states[0] if states else last)
        tiles, rows, columns, width = features.shape
        return reshape(features, (tiles, rows * columns, width)), *states, last


def aya_vision(spec: TiledSpec, build: Builder) -> Model:
    """The whole model (`AyaVisionForConditionalGeneration`, `Cohere2VisionForConditionalGeneration`)."""
    sight = Sight(spec, build)
    language = language_model(spec, build)
    return ImageTextToText(language, sight, build)


HEADS = multimodal(Projector, aya_vision)
