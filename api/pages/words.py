"""The pages' words: words.yaml, read."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from estimator.contract.reading import load_yaml

FILE = Path(__file__).parent / "words.yaml"


class Word(NamedTuple):
    """A word as it is written, and what it means in a sentence or two."""

    title: str
    text: str


@cache
def words() -> dict[str, Word]:
    """Every word by its key."""
    return {key: Word(**entry) for key, entry in load_yaml(FILE).items()}


def meaning(key: str) -> Word:
    """What a part of memory is called and means; a part without an entry is called by its key."""
    key = "nccl_kernels" if key.startswith("nccl_") else key
    return words().get(key, Word(key.replace("_", " "), words()["overhead"].text))
