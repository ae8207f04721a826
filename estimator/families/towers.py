"""Vision towers: encoders of images that other models read. Each is a family of its own."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, model_validator

from estimator.families.spec import Activation, ModelSpec, Size
from estimator.tape import dtypes
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import permute, reshape


def _of_a_square(given: Any) -> Any:
    """[448, 448] as 448."""
    if isinstance(given, list | tuple) and len(given) == 2 and given[0] == given[1]:
        return given[0]
    return given


Side = Annotated[Size, BeforeValidator(_of_a_square)]
"""Height and width of a square, in pixels; some configurations say both."""


class TowerSpec(ModelSpec):
    """An encoder of images. What a configuration leaves out has transformers' defaults."""

    runs = False

    num_attention_heads: Size
    num_channels: Size = 3
    patch_size: Side = 16
    hidden_act: Activation = "gelu"

    @property
    def width(self) -> int:
        """Width of the hidden states."""
        return self.hidden_size

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.width % self.num_attention_heads:
            raise ValueError(f"a width of {self.width} is not a multiple of {self.num_attention_heads} heads")
        return self

    def config(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude={"max_position_embeddings"})


class SquareTowerSpec(TowerSpec):
    """An encoder of square images of one size."""

    image_size: Side = 224

    @model_validator(mode="after")
    def _patches(self) -> Self:
        if self.image_size < self.patch_size:
            raise ValueError(f"patch_size {self.patch_size} is larger than image_size {self.image_size}")
        return self

    @property
    def pixels(self) -> int:
        """Numbers of one image, of all channels."""
        return self.num_channels * self.image_size**2

    def given(self, tape: Tape, images: int) -> Tensor:
        """So many images as a processor makes them, [images, channels, size, size]."""
        return empty(tape, (images, self.num_channels, self.image_size, self.image_size), dtypes.float32, "pixel_values")

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return (self.image_size // self.patch_size) ** 2


def unshuffled(features: Tensor, factor: int) -> Tensor:
    """Squares of patches, of `factor` along each side, as one row each: of [tiles, rows, columns, width] (`pixel_unshuffle` or
    `pixel_shuffle` of models that see)."""
    tiles, rows, columns, size = features.shape
    x = permute(reshape(features, (tiles, rows, columns // factor, size * factor)), (0, 2, 1, 3))
    x = reshape(x, (tiles, columns // factor, rows // factor, size * factor**2))
    return permute(x, (0, 2, 1, 3))
