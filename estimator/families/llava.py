"""LLaVA: a language model that gets an image's patches through two linear layers.

After transformers' modeling_llava.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, Protocol

from estimator.contract.job.images import Images
from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.clip_vision import CLIPVisionSpec, vision_model
from estimator.families.heads import Model
from estimator.families.image_text import ImageTextToText, language_model
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.pixtral import PixtralVisionSpec, resized, sizes_of
from estimator.families.pixtral import VisionModel as PixtralTower
from estimator.families.towers import SquareTowerSpec
from estimator.tape import dtypes
from estimator.tape.pointwise import gelu
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, narrow, reshape, split, unbind


class ProjectedSpec(MultimodalSpec):
    """What it, LLaVA-NeXT and Mistral 3 have in common."""

    vision_feature_layer: int | tuple[int, ...] = -2
    multimodal_projector_bias: bool = True

    @property
    def seen(self) -> int:
        """Width of what the tower gives: of one of its layers, or of several side by side."""
        layers = self.vision_feature_layer
        return self.vision_config.hidden_size * (len(layers) if isinstance(layers, tuple) else 1)


class LlavaSpec(ProjectedSpec):
    runs = True
    kinds = {"text_config": "llama", "vision_config": "clip_vision_model"}
    towers: ClassVar[tuple[str, ...]] = ("clip_vision_model", "pixtral")
    languages: ClassVar[tuple[str, ...]] = ("llama", "mistral", "qwen2", "qwen3")
    modelled = {"projector_hidden_act": ("gelu",)}

    vision_feature_select_strategy: Literal["default", "full"] = "default"

    @property
    def forward_modelled(self) -> bool:
        return super().forward_modelled and (self.vision_config.model_type != "pixtral" or self._reads_last)

    @property
    def refusal(self) -> str:
        if self.vision_config.model_type != "pixtral" or self._reads_last:
            return super().refusal
        read = "all of the last hidden states alone are modelled (vision_feature_layer: -1, vision_feature_select_strategy: full)"
        return f"the forward pass of llava models that read other layers of Pixtral's tower is not modelled yet; {read}"

    @property
    def _reads_last(self) -> bool:
        return self.vision_feature_layer == -1 and self.vision_feature_select_strategy == "full"

    def sized(self, images: Images) -> tuple[int, int] | None:
        """Whole patches of Pixtral's tower."""
        tower = self.vision_config
        if not isinstance(tower, PixtralVisionSpec):
            return None
        return resized(images.height, images.width, tower.image_size, tower.patch_size)

    def image_tokens(self, images: Images) -> int | None:
        """Every image is cut and resized to CLIP's square. Pixtral's rows of patches end with a token each, which is text."""
        tower = self.vision_config
        if (size := self.sized(images)) is not None:
            return size[0] // tower.patch_size * (size[1] // tower.patch_size)
        if not isinstance(tower, SquareTowerSpec):
            return None
        return tower.patches + (self.vision_feature_select_strategy == "full")

    @property
    def states(self) -> tuple[int, ...]:
        """The hidden states of the tower that are read: those before the layer of that number."""
        asked, depth = self.vision_feature_layer, self.vision_config.depth
        return tuple([layer % (depth + 1) for layer in ((asked,) if isinstance(asked, int) else asked)])

    @property
    def picture(self) -> Picture | None:
        tower = self.vision_config
        return Picture(tower.patches, tower.pixels, patches=tower.patches) if isinstance(tower, SquareTowerSpec) else None

    @property
    def tied(self) -> bool:
        return self.tie_word_embeddings or self.text_config.tie_word_embeddings


SPECS: dict[str, type[MultimodalSpec]] = {"llava": LlavaSpec}


def between(spec: ProjectedSpec, build: Builder) -> None:
    """What is between the tower and the language model."""
    Projector(spec, build)


class Projector:
    """Two linear layers (`LlavaMultiModalProjector`), in what is called `name`."""

    def __init__(self, spec: ProjectedSpec, build: Builder, name: str = "multi_modal_projector"):
        read, bias = spec.text_config.hidden_size, spec.multimodal_projector_bias
        self.linear_1 = build.linear(f"{name}.linear_1", spec.seen, read, bias)
        self.linear_2 = build.linear(f"{name}.linear_2", read, read, bias)

    def __call__(self, features: Tensor) -> Tensor:
        hidden = self.linear_1(features)
        hidden = gelu(hidden)
        return self.linear_2(hidden)


class Tower(Protocol):
    """An encoder of images."""

    def see(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Last hidden states, what else it makes of them, and the hidden states that are read."""


class Sight:
    """`LlavaModel.get_image_features`: some of the tower's hidden states, without the class token, through the projector."""

    def __init__(self, spec: LlavaSpec, build: Builder):
        self.spec = spec
        tower = spec.vision_config
        assert isinstance(tower, CLIPVisionSpec)
        self.square: SquareTowerSpec = tower
        with build.part("model.vision_tower", learns=build.images is not None):
            self.tower: Tower = vision_model(tower, build, spec.states)
        with build.part("model", learns=build.images is not None):
            self.projector = Projector(spec, build)

    def pixels(self, tape: Tape, images: int) -> Tensor:
        return self.square.given(tape, images)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Each image's features; the hidden states that were read, and the last ones."""
        last, pooled, *states = self.tower.see(pixels)
        features = self.projector(self._selected(states))
        del pooled
        return (*unbind(features, 0), *states, last)

    def _selected(self, states: Sequence[Tensor]) -> Tensor:
        crop = self.spec.vision_feature_select_strategy == "default"
        parts = [narrow(state, 1, state.shape[1] - 1) if crop else state for state in states]
        return parts[0] if isinstance(self.spec.vision_feature_layer, int) else cat(parts, -1)


class PixtralSight:
    """The same of Pixtral's tower, which takes images of any size: its last hidden states."""

    def __init__(self, spec: LlavaSpec, tower: PixtralVisionSpec, build: Builder):
        self.spec, self.images, self.channels, self.patch = spec, build.images, tower.num_channels, tower.patch_size
        with build.part("model.vision_tower", learns=build.images is not None):
            self.tower = PixtralTower(tower, build)
        with build.part("model", learns=build.images is not None):
            self.projector = Projector(spec, build)

    def pixels(self, tape: Tape, images: int) -> Tensor:
        assert self.images is not None
        size = self.spec.sized(self.images)
        assert size is not None
        return empty(tape, (images, self.channels, *size), dtypes.float32, "pixel_values")

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Each image's features, and the tower's last hidden states."""
        last = self.tower(pixels)
        features = self.projector(last)
        sides = empty(pixels.tape, (pixels.shape[0], 2), dtypes.int64, "floor_divide")
        counts = empty(pixels.tape, (pixels.shape[0],), dtypes.int64, "prod")
        del sides, counts
        features = reshape(features, features.shape[1:])
        each = features.shape[0] // pixels.shape[0]
        return *split(features, [each] * pixels.shape[0], 0), last


def llava(spec: LlavaSpec, build: Builder) -> Model:
    """The whole model (`LlavaForConditionalGeneration`)."""
    if isinstance(spec.vision_config, PixtralVisionSpec):
        seen = PixtralSight(spec, spec.vision_config, build)
        return ImageTextToText(language_model(spec, build), seen, build, lambda parts: cat(parts[:-1], 0), beside=sizes_of)
    sight = Sight(spec, build)
    language = language_model(spec, build)

    return ImageTextToText(language, sight, build, joined(spec))


def joined(spec: LlavaSpec) -> Callable[[tuple[Tensor, ...]], Tensor]:
    """What the language model gets of `Sight`'s tensors: all images' features in a row."""
    return lambda seen: cat(seen[: len(seen) - len(spec.states) - 1], 0)


HEADS = multimodal(between, llava)
