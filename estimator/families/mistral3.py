"""Mistral 3, as Mistral Small 3.1 to 4 and Ministral 3 have it: squares of an image's patches become one token each.

An image keeps its proportions. After transformers' modeling_mistral3.py and image_processing_pixtral.py (5.23).
"""

from __future__ import annotations

from typing import ClassVar

from estimator.contract.job.images import Images
from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.heads import Model
from estimator.families.image_text import ImageTextToText, language_model
from estimator.families.llava import ProjectedSpec, Projector
from estimator.families.parts import multimodal
from estimator.families.pixtral import PixtralVisionSpec, VisionModel, resized, sizes_of
from estimator.families.spec import Size
from estimator.families.towers import SquareTowerSpec
from estimator.tape import dtypes
from estimator.tape.pooling import unfold
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, permute, reshape, split, transpose, unsqueeze


class Mistral3Spec(ProjectedSpec):
    """`spatial_merge_size`: patches along the side of a square."""

    seen_whole_in_vllm = ("merging_layer",)
    runs = True
    kinds = {"text_config": "mistral", "vision_config": "pixtral"}
    towers = ("pixtral",)
    languages: ClassVar[tuple[str, ...]] = ("mistral", "ministral3", "mistral4")
    takes_one_token = False
    modelled = {"projector_hidden_act": ("gelu",)}
    names: ClassVar[tuple[str, str]] = ("vision_tower", "multi_modal_projector")
    """Of the tower, and of what follows it."""

    vision_feature_layer: int | tuple[int, ...] = -1
    multimodal_projector_bias: bool = False
    spatial_merge_size: Size = 2
    tie_word_embeddings: bool = True

    @property
    def forward_modelled(self) -> bool:
        return super().forward_modelled and self.vision_feature_layer == -1

    @property
    def refusal(self) -> str:
        if self.vision_feature_layer == -1:
            return super().refusal
        read = "the last hidden states alone are modelled (vision_feature_layer: -1)"
        return f"the forward pass of mistral3 models that read other layers of their tower is not modelled yet; {read}"

    @property
    def picture(self) -> Picture | None:
        """Its rows end with a token each."""
        tower = self.vision_config
        if not isinstance(tower, SquareTowerSpec):
            return None
        side = -(-tower.image_size // (tower.patch_size * self.spatial_merge_size))
        return Picture(side * (side + 1), tower.pixels)

    def sized(self, images: Images) -> tuple[int, int] | None:
        """Whole squares (`get_resize_output_image_size`)."""
        tower = self.vision_config
        if not isinstance(tower, PixtralVisionSpec):
            return None
        square = tower.patch_size * self.spatial_merge_size
        return resized(images.height, images.width, tower.image_size, square)

    def image_tokens(self, images: Images) -> int | None:
        """Those that stand for squares; the token that ends each row is text."""
        size = self.sized(images)
        square = self.vision_config.patch_size * self.spatial_merge_size
        return None if size is None else size[0] // square * (size[1] // square)

    @property
    def tied(self) -> bool:
        return self.tie_word_embeddings or self.text_config.tie_word_embeddings


SPECS = {"mistral3": Mistral3Spec}


class MultiModalProjector:
    """A norm, a linear layer of whole squares, and two more layers (`Mistral3MultiModalProjector`)."""

    def __init__(self, spec: Mistral3Spec, build: Builder):
        (size, self.side), (_, name) = (spec.vision_config.hidden_size, spec.spatial_merge_size), spec.names
        self.norm = build.rms_norm(f"{name}.norm", size)
        self.merging_layer = build.linear(f"{name}.patch_merger.merging_layer", size * self.side**2, size)
        self.project = Projector(spec, build, name)

    def __call__(self, features: Tensor, grid: tuple[int, int]) -> Tensor:
        """Features [patches of all images, width], whose rows and columns are `grid` in each image."""
        normed = self.norm(features)
        merged = self._merged(normed, grid)
        del normed
        return self.project(merged)

    def _merged(self, features: Tensor, grid: tuple[int, int]) -> Tensor:
        """`Mistral3PatchMerger`: rows, columns and patches of each image are tensors of one number, and squares are held beside
        what joins them."""
        tape, (patches, size), (rows, columns) = features.tape, features.shape, grid
        images = patches // (rows * columns)
        numbers = [empty(tape, (), dtypes.int64, name) for name in ("floor_divide", "floor_divide", "mul") for _ in range(images)]
        parts = split(features, [rows * columns] * images, 0)
        squares = [self._squares(reshape(part, (rows, columns, size))) for part in parts]
        joined = cat(squares, 0)
        merged = self.merging_layer(joined)
        del numbers, parts, squares
        return merged

    def _squares(self, image: Tensor) -> Tensor:
        columns = unfold(unsqueeze(permute(image, (2, 0, 1)), 0), self.side)
        return transpose(reshape(columns, columns.shape[1:]), 0, 1)


class Sight:
    """`Mistral3Model.get_image_features`: the tower's last hidden states through the projector."""

    def __init__(self, spec: Mistral3Spec, build: Builder):
        self.spec, self.images = spec, build.images
        assert isinstance(spec.vision_config, PixtralVisionSpec)
        self.tower = spec.vision_config
        with build.part(f"model.{spec.names[0]}", learns=build.images is not None):
            self.vision_tower = VisionModel(self.tower, build)
        with build.part("model", learns=build.images is not None):
            self.projector = MultiModalProjector(spec, build)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of each image."""
        assert self.images is not None
        size = self.spec.sized(self.images)
        assert size is not None
        return size

    def pixels(self, tape: Tape, images: int) -> Tensor:
        return empty(tape, (images, self.tower.num_channels, *self.size), dtypes.float32, "pixel_values")

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Each image's features, and the tower's last hidden states."""
        (height, width), patch = self.size, self.tower.patch_size
        last = self.vision_tower(pixels)
        features = self.projector(reshape(last, last.shape[1:]), (height // patch, width // patch))
        tokens = features.shape[0] // pixels.shape[0]
        return *split(features, [tokens] * pixels.shape[0], 0), last


def between(spec: Mistral3Spec, build: Builder) -> None:
    """What is between the tower and the language model."""
    MultiModalProjector(spec, build)


def mistral3(spec: Mistral3Spec, build: Builder, caps: bool = False) -> Model:
    """The whole model (`Mistral3ForConditionalGeneration`); `caps`: whether logits go through what the language model's do."""
    sight = Sight(spec, build)
    language = language_model(spec, build)
    return ImageTextToText(language, sight, build, lambda seen: cat(seen[:-1], 0), beside=sizes_of, caps=caps)


HEADS = multimodal(between, mistral3)
