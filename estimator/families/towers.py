"""Vision towers: encoders of images that other models read. Each is a family of its own."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from estimator.specs.spec import Activation, ModelSpec, Probability, Size


def _of_a_square(given: Any) -> Any:
    """[448, 448] as 448."""
    if isinstance(given, list | tuple) and len(given) == 2 and given[0] == given[1]:
        return given[0]
    return given


Side = Annotated[Size, BeforeValidator(_of_a_square)]
"""Height and width of a square, in pixels; some configurations say both."""


class TowerSpec(ModelSpec):
    """Sizes of an encoder of images. What a configuration leaves out has transformers' defaults."""

    runs = False

    num_attention_heads: Size
    intermediate_size: Size
    num_channels: Size = 3
    image_size: Side = 224
    patch_size: Side = 16
    hidden_act: Activation = "gelu"
    attention_dropout: Probability = 0.0

    @property
    def patches(self) -> int:
        """Of one image."""
        return (self.image_size // self.patch_size) ** 2

    def config(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude={"max_position_embeddings"})
