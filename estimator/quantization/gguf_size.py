"""How large a model's GGUF file is, by the kind of file.

file = 24 bytes + metadata + descriptions of the tensors + their bytes, each tensor from a multiple of 32 on.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from estimator.contract.reading import load_yaml
from estimator.families.spec import ModelSpec
from estimator.quantization.gguf_mixtures import Model, facts, type_of
from estimator.quantization.gguf_tensors import FileTensor, file_tensors
from estimator.weights.gguf import ALIGNMENT

METADATA = Path(__file__).parent / "gguf_metadata.yaml"
BEGINNING = 24
"""Bytes before the metadata: the letters GGUF, the version, and two counts."""


def tensor_bytes(spec: ModelSpec, kinds: Iterable[str]) -> dict[str, int]:
    """Bytes of all tensors, which is what llama.cpp loads and prints as a model's size, by the kind of file.

    Raises `NotModelled` for families whose files are not described.
    """
    tensors = file_tensors(spec)
    model = facts(spec, tensors)
    return {kind: sum(_bytes(kind, tensor, model) for tensor in tensors) for kind in kinds}


def header_bytes(spec: ModelSpec) -> int | None:
    """What a file has in addition to its tensors' bytes: metadata, of which the tokenizer is nearly all, and each tensor's
    name, sizes, type and place. None where the tokenizer is not known."""
    metadata = _metadata().get((spec.model_type, int(getattr(spec, "vocab_size", 0))))
    if metadata is None:
        return None
    return BEGINNING + metadata + sum(8 + len(t.name) + 4 + 8 * t.dimensions + 4 + 8 for t in file_tensors(spec))


def _bytes(kind: str, tensor: FileTensor, model: Model) -> int:
    block = type_of(kind, tensor, model)
    nbytes = tensor.elements // block.elements * block.nbytes
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@cache
def _metadata() -> dict[tuple[str, int], int]:
    rows: list[dict[str, Any]] = load_yaml(METADATA)["vocabularies"]
    return {(family, row["vocab_size"]): row["value"] for row in rows for family in row["families"]}
