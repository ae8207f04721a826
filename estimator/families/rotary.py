"""Rotary position embeddings on a part of each head, and what a config.json says of them.

After transformers' modeling_rope_utils.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from estimator.families.build import Builder
from estimator.families.spec import DecoderSpec
from estimator.tape import dtypes
from estimator.tape.tensor import Tensor

ROPES = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding that keep the same two tables of frequencies and make no others."""


NESTED = ("rope_parameters", "rope_scaling")


class RotarySpec(DecoderSpec):
    """A decoder with rotary embeddings. A config.json says their kind in `rope_parameters` or in `rope_scaling`."""

    ropes: ClassVar[tuple[str, ...]] = ROPES
    """Kinds that the family has a model of."""

    @property
    def rotary_size(self) -> int:
        """Elements of each head that are rotated."""
        return self.head_dim

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | set(NESTED)

    @model_validator(mode="before")
    @classmethod
    def _rope(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        nested = given.get("rope_scaling") or given.get("rope_parameters") or {}
        if not isinstance(nested, Mapping):
            raise ValueError("rope_parameters is not a mapping")
        kind = nested.get("rope_type", nested.get("type", "default"))
        if kind not in cls.ropes:
            raise ValueError(f"rope_type {kind!r} is not modelled for {given.get('model_type')}; {', '.join(cls.ropes)} are")
        return {name: value for name, value in given.items() if name not in NESTED} | cls.from_rope(kind, nested)

    @classmethod
    def from_rope(cls, kind: str, nested: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that follow from the kind of rotary embedding and from the other numbers that the config.json gives."""
        return {}

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.rotary_size % 2 or not self.rotary_size:
            raise ValueError(f"{self.rotary_size} elements of each head are rotated: rotary embeddings need pairs")
        return self


class PartialRotarySpec(RotarySpec):
    """A decoder of which the first `partial_rotary_factor` of each head is rotated.

    A config.json has the factor beside its other numbers, or with the kind.
    """

    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 1.0

    @property
    def rotary_size(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    @classmethod
    def from_rope(cls, kind: str, nested: Mapping[str, Any]) -> dict[str, Any]:
        return {name: nested[name] for name in ("partial_rotary_factor",) if nested.get(name) is not None}


def frequencies(build: Builder, size: int, names: tuple[str, ...] = ("inv_freq", "original_inv_freq")) -> list[Tensor]:
    """The buffers of a rotary embedding over `size` elements of each head."""
    return [build.buffer(name, (size // 2,), dtypes.float32) for name in names]
