"""What the sequences of a batch have of sound, of a model that hears it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from estimator.contract.job.part import Part

RATE = 16_000
"""Samples of a second of sound, as the models that are known are given it."""


class Audio(Part):
    """Clips of one length, as the model's processor gets them. The tokens that it makes of them are part of `sequence_length`."""

    count: Annotated[int, Field(ge=1, le=2**12)] = Field(1, description="clips in each sequence")
    seconds: Annotated[float, Field(gt=0, le=86_400)] = Field(description="length of a clip, before the processor fills it up")

    @property
    def samples(self) -> int:
        """Samples of a clip."""
        return max(1, round(self.seconds * RATE))
