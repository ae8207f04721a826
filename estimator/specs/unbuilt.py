"""What is known of a name that is no model's here: that transformers has no classes for it, or that nobody has its weights."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from estimator.contract.units import GIB
from estimator.facts import catalogue
from estimator.facts.spelling import folded, words

_SIZE = re.compile(r"(\d+(?:\.\d+)?)b")
FILE = Path(__file__).with_name("unbuilt.yaml")


SAYS = {
    "models": "{release} has no class for it, and the code of its checkpoint is never run: what it takes is not known.",
    "closed": "Its weights are its maker's alone, who serves it: there is nothing to run.",
    "diffusion": "It makes pictures, video or sound by diffusion, which is not modelled: models of transformers are.",
    "towers": "What it sees and hears with is not modelled; its language model alone is. Did you mean {instead}?",
}
"""What is said of the names of each list."""


class Known(NamedTuple):
    """What is known of a name."""

    of: str
    """Its list."""
    instead: str = ""
    """A model here that is a part of it."""


@cache
def _names() -> dict[str, Known]:
    """Every name, folded, with and without its organisation."""
    lists = catalogue.shipped(FILE)
    every = {name: Known(of) for of in ("closed", "diffusion") for name in lists[of]}
    for of in ("models", "towers"):
        every |= {name: Known(of, each.get("instead", "")) for each in lists[of] for name in each["names"]}
    return {folded(written): known for name, known in every.items() for written in (name, name.rpartition("/")[2])}


def unbuilt(name: str) -> str:
    """Why a model of a name cannot be counted; empty where nothing is known of it."""
    bare = name.rpartition("/")[2]
    found = next((known for each in (name, bare, bare.partition("_")[2]) if (known := _names().get(folded(each)))), None)
    if found is None:
        return ""
    said = SAYS[found.of].format(release=catalogue.shipped(FILE)["release"], instead=found.instead)
    return f" {said}" + (_of_its_size(name) if found.of == "models" else "")


def _of_its_size(name: str) -> str:
    """What weights take by the size that a name says; empty where it says none."""
    sizes = [float(size[1]) for word in words(name) if (size := _SIZE.fullmatch(word))]
    if not sizes:
        return ""
    taken = max(sizes) * 1e9 * 2 / GIB
    return f" By the size in its name its weights alone are about {taken:,.0f} GiB in bf16, and a quarter of that in 4 bits."
