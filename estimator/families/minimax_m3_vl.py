"""MiniMax-M3: its language model, which gets squares of a tower's patches through two feed-forward layers.

After transformers' modeling_minimax_m3_vl.py and image_processing_minimax_m3_vl.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.heads import Model
from estimator.families.image_text import ImageTextToText, by_image, compare, grids_of, language_model
from estimator.families.minimax_m3_vision import MiniMaxM3VisionSpec, VisionModel
from estimator.families.qwen_vl import Spec
from estimator.families.spec import ModelSpec, Size
from estimator.tape import dtypes
from estimator.tape.pointwise import gelu, to
from estimator.tape.scatter import masked_scatter
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, reshape, unsqueeze


class MiniMaxM3VLSpec(Spec):
    """`projector_hidden_size`: of the middle of both layers between the tower and the language model."""

    tells_images_apart = False
    bounds = (4 * 28 * 28, 451584)
    kinds = {"text_config": "minimax_m3_vl_text", "vision_config": "minimax_m3_vl_vision"}
    towers, languages = ("minimax_m3_vl_vision",), ("minimax_m3_vl_text",)

    projector_hidden_size: Size = 6144

    @model_validator(mode="before")
    @classmethod
    def _made(cls, given: Any) -> Any:
        """Without `merged_hidden_size`, which follows from the parts."""
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if name != "merged_hidden_size"}

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"merged_hidden_size"}

    @property
    def tied(self) -> bool:
        return self.tie_word_embeddings or self.text_config.tie_word_embeddings

    @property
    def alone(self) -> ModelSpec:
        return self.language_model

    @property
    def tower(self) -> MiniMaxM3VisionSpec:
        assert isinstance(self.vision_config, MiniMaxM3VisionSpec)
        return self.vision_config

    @property
    def picture(self) -> Picture | None:
        """Not known: vLLM begins with a film (models/minimax_m3/common/mm_preprocess.py, `get_dummy_mm_data`)."""
        return None


SPECS = {"minimax_m3_vl": MiniMaxM3VLSpec}


class Projector:
    """Two linear layers for each patch, squares of patches side by side, and two for each square
    (`MiniMaxM3VLMultiModalProjector`)."""

    def __init__(self, spec: MiniMaxM3VLSpec, build: Builder):
        name, given, middle = "multi_modal_projector.", spec.text_config.hidden_size, spec.projector_hidden_size
        self.merged = given * spec.tower.spatial_merge_size**2
        self.linear_1 = build.linear(name + "linear_1", spec.tower.hidden_size, middle, True)
        self.linear_2 = build.linear(name + "linear_2", middle, given, True)
        self.merge_linear_1 = build.linear(name + "merge_linear_1", self.merged, middle, True)
        self.merge_linear_2 = build.linear(name + "merge_linear_2", middle, given, True)

    def __call__(self, seen: Tensor) -> Tensor:
        hidden = self.linear_2(gelu(self.linear_1(seen)))
        hidden = reshape(hidden, (-1, self.merged))
        return self.merge_linear_2(gelu(self.merge_linear_1(hidden)))


class Sight:
    """`MiniMaxM3VLModel.get_image_features`."""

    def __init__(self, spec: MiniMaxM3VLSpec, build: Builder):
        self.spec, learns = spec, build.images is not None
        self.grid = None if build.images is None else spec.grid(build.images)
        with build.part("model.vision_tower", learns):
            self.tower = VisionModel(spec.tower, build, self.grid)
        with build.part("model", learns):
            self.projector = Projector(spec, build)

    def pixels(self, tape: Tape, images: int) -> Tensor:
        """The patches of so many images."""
        assert self.grid is not None
        patches = images * self.grid[0] * self.grid[1]
        return empty(tape, (patches, *self.spec.tower.patch_shape), dtypes.float32, "pixel_values")

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Each image's features, and the tower's last hidden states."""
        assert self.grid is not None
        last = self.tower(pixels)
        features = self.projector(last)
        each = self.grid[0] * self.grid[1] // self.spec.tower.spatial_merge_size**2
        return *by_image(features, each), last


class MiniMaxM3VL(ImageTextToText):
    """What features take the place of is counted, number by number (`get_placeholder_mask`)."""

    def _read(self, ids: Tensor, pixels: Tensor | None = None, types: Tensor | None = None) -> tuple[Tensor, ...]:
        embeds = self.body.embed_tokens(ids)
        if pixels is None:
            return (self.body.decode(ids, embeds),)
        assert self.sight is not None
        *parts, last = self.sight(pixels)
        features = to(cat(parts, 0), embeds.dtype)
        places, films = self._places(ids, embeds, features)
        embeds = masked_scatter(embeds, places, features)
        hidden = self.body.decode(ids, embeds)
        del places, films, last
        return hidden, *parts

    def _places(self, ids: Tensor, embeds: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        places, films = (empty(ids.tape, ids.shape, dtypes.bool_, "eq") for _ in ("images", "films"))
        number = empty(ids.tape, (), dtypes.int64, "sum")
        compare(embeds, features)
        of_films = empty(ids.tape, (), dtypes.int64, "sum")
        del number, of_films
        return unsqueeze(places, 2), films


def minimax_m3_vl(spec: MiniMaxM3VLSpec, build: Builder) -> Model:
    """The whole model (`MiniMaxM3SparseForConditionalGeneration`)."""
    sight = Sight(spec, build)
    language = language_model(spec, build)
    return MiniMaxM3VL(language, sight, build, beside=grids_of(build))


HEADS = {"image-text-to-text": minimax_m3_vl}
