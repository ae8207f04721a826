"""The element types of weight files and their sizes: dtypes.yaml, as values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from estimator import catalogue

FILE = Path(__file__).parent / "dtypes.yaml"


@dataclass(frozen=True, slots=True)
class BlockType:
    """A type of ggml: every `elements` of a row are stored together, in `nbytes` bytes."""

    name: str
    elements: int
    nbytes: int


@cache
def _facts() -> Any:
    return catalogue.load_yaml(FILE)


@cache
def safetensors_bits() -> dict[str, int]:
    """Bits per element of every type that a safetensors file can have, by its name there."""
    return dict(_facts()["safetensors"]["types"])


@cache
def ggml_types() -> dict[int, BlockType]:
    """Every type that a GGUF file can have, by its number there."""
    types = _facts()["ggml"]["types"]
    return {number: BlockType(name, elements, nbytes) for name, (number, elements, nbytes) in types.items()}


@cache
def ggml_removed() -> dict[int, str]:
    """Names of the types that older GGUF files have and that ggml reads no more, by number."""
    return dict(_facts()["ggml"]["removed"])
