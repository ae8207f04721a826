"""What every part of a job has in common: unknown keys refused, and the kinds of values that several parts use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from estimator.contract.errors import InvalidValue
from estimator.contract.units import parse_bytes, parse_count

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
    "packed-int8",
    "packed-int4",
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
    """A part of a job: unknown keys are refused, and nothing can be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def refuse_truths(part: type[BaseModel], content: Mapping[str, Any], path: str) -> None:
    """Raise `InvalidJob` where true or false was given for what is no such thing: pydantic would take them for 1 and 0."""
    for name, value in content.items():
        field = part.model_fields.get(name) if isinstance(name, str) else None
        if field is None:
            continue  # an unknown key, which validation refuses
        kinds = set(_kinds(field.annotation))
        if isinstance(value, bool) and not kinds & {bool, Any}:
            raise InvalidValue(f"write a number or text, not {str(value).lower()}", f"{path}{name}")
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if isinstance(value, Mapping) and len(inner) == 1:
            refuse_truths(inner[0], value, f"{path}{name}.")


def _kinds(annotation: Any) -> Iterator[Any]:
    """A type, or those of a union."""
    members = get_args(annotation)
    if not members or getattr(annotation, "__origin__", None) is Literal:
        yield annotation
    for member in members:
        yield from _kinds(member)
