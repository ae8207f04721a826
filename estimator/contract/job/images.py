"""What the sequences of a batch have of images, of a model that sees them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from estimator.contract.job.part import Part

Pixels = Annotated[int, Field(ge=1, le=2**15)]


class Images(Part):
    """Images of one size, as the model's processor gets them. The tokens that it makes of them are part of `sequence_length`."""

    count: Annotated[int, Field(ge=1, le=2**12)] = Field(1, description="images in each sequence")
    width: Pixels = Field(description="pixels of an image, before the processor resizes it")
    height: Pixels = Field(description="likewise")
