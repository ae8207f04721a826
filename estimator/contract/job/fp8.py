"""Products in fp8 by Transformer Engine, in the words of Megatron-LM's arguments."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from estimator.contract.job.part import Part


class Fp8(Part):
    """Products of the layers' linear modules in fp8, under implementation: megatron."""

    recipe: Literal["delayed", "tensorwise", "blockwise", "mxfp8"] = Field(
        "delayed", description="how numbers are scaled (--fp8-recipe): by a history of maxima, by the tensor's own, or by block"
    )
    format: Literal["hybrid", "e4m3"] = Field(
        "hybrid", description="types of gradients and of all else (--fp8-format); a byte each, so that no byte depends on it"
    )
    param_gather: bool = Field(
        False, description="these modules' weights are kept in fp8 alone, and gathered so (--fp8-param-gather)"
    )
    amax_history_len: Annotated[int, Field(ge=1, le=2**20)] = Field(
        1, description="maxima that delayed scaling remembers of each tensor (--fp8-amax-history-len)"
    )
