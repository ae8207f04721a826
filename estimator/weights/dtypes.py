"""The element types of weight files and their sizes: dtypes.yaml, as values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from estimator.facts import catalogue

FILE = Path(__file__).parent / "dtypes.yaml"


@dataclass(frozen=True, slots=True)
class BlockType:
    """A type of ggml: every `elements` of a row are stored together, in `nbytes` bytes."""

    name: str
    elements: int
    nbytes: int


@cache
def safetensors_bits() -> dict[str, int]:
    """Bits per element of every type that a safetensors file can have, by its name there."""
    return dict(catalogue.shipped(FILE)["safetensors"]["types"])


@cache
def ggml_types() -> dict[int, BlockType]:
    """Every type that a GGUF file can have, by its number there."""
    types = catalogue.shipped(FILE)["ggml"]["types"]
    return {number: BlockType(name, elements, nbytes) for name, (number, elements, nbytes) in types.items()}


@cache
def ggml_removed() -> dict[int, str]:
    """Names of the types that older GGUF files have and that ggml reads no more, by number."""
    return dict(catalogue.shipped(FILE)["ggml"]["removed"])
