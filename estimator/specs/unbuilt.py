"""What is known of a name that is no model's here: that transformers has no classes for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from estimator.facts import catalogue
from estimator.facts.spelling import folded

FILE = Path(__file__).with_name("unbuilt.yaml")


@cache
def _names() -> frozenset[str]:
    """Every name, folded, with and without its organisation."""
    names = [name for model in catalogue.shipped(FILE)["models"] for name in model["names"]]
    return frozenset(folded(written) for name in names for written in (name, name.rpartition("/")[2]))


def unbuilt(name: str) -> str:
    """Why a model of a name cannot be counted; empty where nothing is known of it."""
    if not {folded(name), folded(name.rpartition("/")[2])} & _names():
        return ""
    release = catalogue.shipped(FILE)["release"]
    return f" {release} has no class for it, and the code of its checkpoint is never run: what it takes is not known."
