"""The parts of a precision recipe, each of which can be set by itself."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from estimator.contract.job.part import Part

Half = Literal["bf16", "fp16", "fp32"]


class Dtypes(Part):
    """Types that a recipe would choose otherwise; what is left out is as the recipe has it."""

    weights: Half | None = Field(None, description="what parameters are kept in; under fsdp2, their shards")
    gradients: Half | None = Field(None, description="under fsdp2 what gradients are reduced in; Megatron: its buffer")
    master_weights: Half | None = Field(None, description="the copy of the weights that the optimizer works on")
    optimizer_states: Half | None = Field(None, description="what the optimizer keeps beside them")
