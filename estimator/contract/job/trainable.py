"""Training a part of a model: which of its own parameters are trained, and which are frozen."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from estimator.contract.job.part import Count, Part

_RANGES = re.compile(r"\d{1,4}(-\d{1,4})?(, *\d{1,4}(-\d{1,4})?)*")


def _ranges(text: str) -> str:
    if not _RANGES.fullmatch(text) or any(len(bounds) > 1 and bounds[0] > bounds[1] for bounds in _bounds(text)):
        raise ValueError(f"{text!r} names no layers: write numbers and ranges, from 0 on, as in 0-3, 28-31")
    return text


Ranges = Annotated[str, AfterValidator(_ranges)]


def numbers(ranges: str) -> list[int]:
    """The numbers in ranges such as 0-3, 7."""
    return sorted({number for bounds in _bounds(ranges) for number in range(bounds[0], bounds[-1] + 1)})


def _bounds(ranges: str) -> list[list[int]]:
    return [[int(bound) for bound in part.split("-")] for part in ranges.split(",")]


class Trainable(Part):
    """A part of the model that is trained, all else being frozen. What is given together narrows it, but `outside` adds to it."""

    layers: Ranges | None = Field(None, description="layers by number, from 0 on: 24-31, or 0-1, 30-31")
    last: Count | None = Field(None, description="so many layers at the end")
    names: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None, description="parts of parameters' names, from dot to dot: bias, mlp, self_attn.q_proj, lm_head"
    )
    outside: bool = Field(False, description="also all that lies outside the layers: embeddings, last norm, output layer")

    lisa: Count | None = Field(
        None, description="LISA: so many layers at a time, others every few steps, and all outside; the worst layers unless given"
    )
    states: Literal["kept", "dropped"] = Field(
        "kept", description="with lisa: what becomes of the optimizer's states of layers that are frozen again"
    )

    badam: bool = Field(
        False,
        description="BAdam: one such part at a time, of which the optimizer has float32 copies; by itself, the worst layer",
    )

    @model_validator(mode="after")
    def _alone(self) -> Trainable:
        if self.lisa is not None and self.badam:
            raise ValueError("lisa and badam both say what is trained in turn: give one of them")
        if self.lisa is None and self.states == "dropped":
            raise ValueError("states are dropped only where lisa freezes layers again")
        if self.lisa is not None and (
            self.last is not None or self.names or (self.layers and len(numbers(self.layers)) != self.lisa)
        ):
            raise ValueError(f"lisa trains {self.lisa} layers and all outside: give just these layers, or none")
        return self

    @model_validator(mode="after")
    def _some(self) -> Trainable:
        if self.layers is not None and self.last is not None:
            raise ValueError("layers and last both say which layers: give one of them")
        if not (self.layers or self.last or self.names or self.outside or self.lisa or self.badam):
            raise ValueError("nothing is trained: give layers, last, names, outside, lisa or badam")
        return self


Trained = Literal["all", "bias"] | Trainable
"""What of a model is trained; `bias` is what is called so (BitFit)."""
