"""What every part of a job has in common: unknown keys refused, and the kinds of values that several parts use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from estimator.units import parse_bytes, parse_count

Count = Annotated[int, Field(ge=1, le=2**20)]
Length = Annotated[int, Field(ge=1, le=2**24)]
Tokens = Annotated[int, BeforeValidator(parse_count, json_schema_input_type=int | float | str), Field(ge=1, le=10**16)]
Bytes = Annotated[int, BeforeValidator(parse_bytes, json_schema_input_type=int | str), Field(ge=1, le=2**50)]
Place = Literal["none", "cpu", "nvme"]

Storage = Literal[
    "nf4",
    "nf4-double",
    "fp4",
    "int8",
    "gptq-int8",
    "gptq-int4",
    "gptq-int4-ungrouped",
    "gptq-int3",
    "gptq-int2",
    "awq-int4",
    "hqq-int8",
    "hqq-int4",
    "hqq-int3",
    "hqq-int2",
    "hqq-int1",
    "eetq-int8",
    "torchao-int8",
    "torchao-int4",
    "torchao-int4-tiles",
    "torchao-fp8",
    "fp8",
    "fp8-row",
    "fp8-block",
    "mxfp4",
    "nvfp4",
]
"""How quantized weights are stored: the names of estimator.quantization.formats."""


class Part(BaseModel):
    """A part of a job."""

    model_config = ConfigDict(extra="forbid", frozen=True)
