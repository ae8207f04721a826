"""Models that are made of other models: a config.json in which each part has a configuration of its own.

A part is read as its own family reads it, and its parameters are that family's. After transformers' configuration_utils.py
(5.23): what a part's configuration leaves out has its class's defaults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import SerializeAsAny, model_validator

from estimator.contract.errors import NotModelled
from estimator.contract.job.images import Images
from estimator.contract.reading import load_yaml
from estimator.families import FAMILIES, build_model, heads, spec_class
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer
from estimator.families.counted import counted
from estimator.families.from_config import from_mapping
from estimator.families.heads import Head, Model
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.families.towers import TowerSpec


class PartsSpec(ModelSpec):
    """A model of texts and more. `hidden_size`, `num_hidden_layers` and `max_position_embeddings` follow from its parts."""

    runs = False
    made = frozenset({"hidden_size", "num_hidden_layers"})
    kinds: ClassVar[Mapping[str, str]]
    """The model type of each part where its configuration names none."""
    fixed: ClassVar[tuple[str, ...]] = ()
    """Parts that are of that type whatever their configuration names."""
    unread: ClassVar[tuple[str, ...]] = ()
    """Settings of a part that change what it computes and none of its parameters."""
    text_class: ClassVar[type[ModelSpec]] = ModelSpec
    """What the part for texts must be."""
    beside: ClassVar[Mapping[str, type[ModelSpec]]]
    """What the parts beside it must be."""

    text_config: SerializeAsAny[ModelSpec]

    @model_validator(mode="before")
    @classmethod
    def _parts(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        made = dict(given)
        for name, wanted in {"text_config": cls.text_class, **cls.beside}.items():
            if isinstance(made.get(name), Mapping):
                said = {key: value for key, value in made[name].items() if key not in cls.unread}
                made[name] = part(said, name, cls.kinds[name], name in cls.fixed, wanted)
        text = made.get("text_config")
        towers = [tower for name in cls.beside if isinstance(tower := made.get(name), ModelSpec)]
        if isinstance(text, ModelSpec) and len(towers) == len(cls.beside):
            made["hidden_size"] = text.hidden_size
            made["num_hidden_layers"] = text.depth + sum(tower.depth for tower in towers)
            made["max_position_embeddings"] = text.max_position_embeddings
        return made

    def config(self) -> dict[str, Any]:
        own = self.model_dump(mode="json", by_alias=True, exclude=_DERIVED | {"text_config", *self.beside})
        return own | {name: getattr(self, name).config() for name in ("text_config", *self.beside)}


LONGEST = 500
"""Characters of a model that is written out in a sentence."""


class ComposedSpec(PartsSpec):
    """A model of texts and images."""

    beside = {"vision_config": TowerSpec}

    vision_config: SerializeAsAny[TowerSpec]


class SpeakingSpec(PartsSpec):
    """A language model that gets more than texts."""

    text_class = DecoderSpec
    tower_field: ClassVar[str] = "vision_config"
    """The field of the tower whose results it reads beside texts."""
    towers: ClassVar[tuple[str, ...]] = ()
    """Model types of the towers with which its forward pass is modelled."""
    languages: ClassVar[tuple[str, ...]] = ()
    """Those of the language models."""
    pixels_as_weights: ClassVar[bool] = False
    """Whether the model casts no pixels or spectrograms, so that a batch must have them in the type of its weights."""
    mask_of_sound: ClassVar[str] = "feature_attention_mask"
    """What a batch calls the mask of the frames of spectrograms that are of a clip."""
    pools: ClassVar[bool] = False
    """Whether its forward pass is modelled with a tower's pooling head, too, whose result it does not read."""

    text_config: SerializeAsAny[DecoderSpec]
    tie_word_embeddings: bool = False

    @property
    def cached_per_token(self) -> int | None:
        """Numbers that one token adds to the KV cache of the language model."""
        return self.text_config.cached_per_token

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        """The language model's."""
        return self.text_config.cache_layers

    @property
    def cache_places(self) -> tuple[int, ...]:
        return self.text_config.cache_places

    @property
    def longest_sequence(self) -> int | None:
        return self.text_config.longest_sequence

    @property
    def tied(self) -> bool:
        """Whether the language model's output layer is its input embedding."""
        return self.tie_word_embeddings

    @property
    def language_model(self) -> DecoderSpec:
        """The language model as it is in this one."""
        return self.text_config.model_copy(update={"tie_word_embeddings": self.tied})

    @property
    def alone(self) -> ModelSpec:
        """What to write in the job instead of this model: its language model."""
        return self.language_model

    @property
    def instead(self) -> str:
        if not self.alone.runs:
            return ""
        written = _inline(self.alone)
        given = written if len(written) <= LONGEST else f"its text_config, whose model_type is {self.alone.model_type}"
        return f"for its language model alone, give as model {given}"

    @property
    def forward_modelled(self) -> bool:
        tower = getattr(self, self.tower_field)
        parts = tower.model_type in self.towers and self.text_config.model_type in self.languages
        return self.runs and parts and (self.pools or not getattr(tower, "vision_use_head", False))

    @property
    def refusal(self) -> str:
        if not self.runs or self.forward_modelled:
            return super().refusal
        text, tower = self.text_config.model_type, getattr(self, self.tower_field)
        pooled = " with a pooling head" if getattr(tower, "vision_use_head", False) else ""
        kinds = f"{self.model_type} models of {text} and {tower.model_type}{pooled}"
        return f"the forward pass of {kinds} is not modelled yet, only their parameters are"


class MultimodalSpec(ComposedSpec, SpeakingSpec):
    """A language model that sees images through a tower."""

    text_class = DecoderSpec
    sees = True
    images_by_mask: ClassVar[bool] = False
    """Whether its processor tells the tokens of images from those of text by a mask."""
    patches_images: ClassVar[bool] = False
    """Whether its processor gives an image as patches with their places, filled up to so many."""

    beside_texts: ClassVar[bool] = False
    """Whether it gets images in a fixed number of tiles each, with their proportions, and layers of its own read them."""

    takes_one_token: ClassVar[bool] = True
    """Whether all images of a batch may be a single token, which transformers' code would squeeze away otherwise."""

    narrow_pixels: ClassVar[bool] = False
    """Whether its processor makes pixels in bfloat16, which the model does not cast."""

    tiles_by_text: ClassVar[bool] = True
    """Whether the tiles of a text's images come together, not those of all texts in one row."""

    tiles_by_image: ClassVar[bool] = False
    """Whether the tiles of each image come together, with the image's size."""
    counts_images: ClassVar[bool] = False
    """Whether a batch says how many images each text has."""

    resizes: ClassVar[bool] = False
    """Whether its processor keeps an image's proportions, and its pixels between a least and a most number."""
    tells_images_apart: ClassVar[bool] = False
    """Whether it takes an image for what stands between two texts, so that there must be a token between two images."""

    text_config: SerializeAsAny[DecoderSpec]

    def grid(self, images: Images) -> tuple[int, int] | None:
        """Rows and columns of patches of an image, of a model that gets patches; None of one that gets images as they are."""
        return None

    def tiles(self, images: Images) -> int | None:
        """Tiles that an image is cut into, of a model that gets tiles; None of one that does not."""
        return None

    def grids(self, images: Images) -> list[tuple[int, int]] | None:
        """Rows and columns of patches of each tile of an image, of a model that gets tiles as patches that are filled up to
        so many; None of one that does not."""
        return None

    def squares(self, images: Images) -> int:
        """Squares of the tower's size that an image becomes, of a model that gets all of them in one row."""
        return 1

    def sized(self, images: Images) -> tuple[int, int] | None:
        """Height and width that an image is resized to, of a model that gets images of any size with these beside them; None of
        one that does not."""
        return None


_DERIVED = {"hidden_size", "num_hidden_layers", "max_position_embeddings"}


def part(given: Mapping[str, Any], where: str, kind: str, fixed: bool, wanted: type[ModelSpec]) -> ModelSpec:
    """The spec of a part: of type `kind` where it names no other, or whatever it names if that is `fixed`."""
    named = kind if fixed else given.get("model_type") or kind
    left_out: Mapping[str, Any] = {}
    if isinstance(named, str) and named in FAMILIES:
        if not issubclass(spec_class(named), wanted):
            raise NotModelled(f"a part of type {named!r} is not modelled yet", where)
        left_out = _defaults().get(named, {})
    return from_mapping({**left_out, **given, "model_type": named}, where)


def multimodal(declare: Callable[[Any, Builder], object], make: Head | None = None) -> dict[str, Head]:
    """The heads of a language model with a tower. `declare` makes what is between them; `make` the whole model, where its forward
    pass is modelled, which else is only counted."""

    def whole(spec: MultimodalSpec, build: Builder) -> None:
        build_model(spec.language_model, build, "causal-lm")
        build_part(spec.vision_config, build)
        declare(spec, build)

    def head(spec: MultimodalSpec, build: Builder) -> Model:
        return make(spec, build) if make is not None and spec.forward_modelled else counted(whole)(spec, build)

    return {"image-text-to-text": head}


def build_part(spec: ModelSpec, build: Builder) -> Model:
    """A part with its family's usual head, mostly for its parameters."""
    return build_model(spec, build, next(iter(heads(spec.model_type))))


@cache
def _defaults() -> dict[str, dict[str, Any]]:
    """What a part's configuration may leave out, by its model type."""
    found: dict[str, dict[str, Any]] = load_yaml(Path(__file__).parent / "parts.yaml")
    return found


def _inline(spec: ModelSpec) -> str:
    """A spec as one writes it into a job, without what goes without saying."""
    return json.dumps(spec.model_dump(mode="json", by_alias=True, exclude_defaults=True))
