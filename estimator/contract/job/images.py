"""What the sequences of a batch have of images, of a model that sees them."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from estimator.contract.job.part import Part

Pixels = Annotated[int, Field(ge=1, le=2**15)]
Bound = Annotated[int, Field(ge=1, le=2**30)]


class Images(Part):
    """Images of one size, as the model's processor gets them. The tokens that it makes of them are part of `sequence_length`."""

    count: Annotated[int, Field(ge=1, le=2**12)] = Field(1, description="images in each sequence")
    width: Pixels = Field(description="pixels of an image, before the processor resizes it")
    height: Pixels = Field(description="likewise")
    min_pixels: Bound | None = Field(
        None, description="pixels that it is resized to at least, its proportions kept; None: as the model is published"
    )
    max_pixels: Bound | None = Field(None, description="pixels that it is resized to at most; None: as the model is published")

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} are more than max_pixels {self.max_pixels}")
        return self
