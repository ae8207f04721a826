"""What is known of a name that is no model's here: that transformers has no classes for it, or that nobody has its weights."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from estimator.contract.units import GIB
from estimator.facts import catalogue
from estimator.facts.spelling import folded, words

_SIZE = re.compile(r"(\d+(?:\.\d+)?)b")
FILE = Path(__file__).with_name("unbuilt.yaml")


SAYS = {
    "models": "{release} has no class for it, and the code of its checkpoint is never run: what it takes is not known.",
    "closed": "Its weights are its maker's alone, who serves it: there is nothing to run.",
    "diffusion": "It makes pictures, video or sound by diffusion, which is not modelled: models of transformers are.",
}
"""What is said of the names of each list."""


@cache
def _names() -> dict[str, str]:
    """Every name, folded, with and without its organisation, and which list it is of."""
    lists = catalogue.shipped(FILE)
    every = {"models": [name for model in lists["models"] for name in model["names"]], "closed": lists["closed"]}
    every["diffusion"] = lists["diffusion"]
    return {folded(written): of for of, names in every.items() for name in names for written in (name, name.rpartition("/")[2])}


def unbuilt(name: str) -> str:
    """Why a model of a name cannot be counted; empty where nothing is known of it."""
    bare = name.rpartition("/")[2]
    found = next((of for each in (name, bare, bare.partition("_")[2]) if (of := _names().get(folded(each)))), None)
    said = f" {SAYS[found].format(release=catalogue.shipped(FILE)['release'])}" if found else ""
    return said + (_of_its_size(name) if found == "models" else "")


def _of_its_size(name: str) -> str:
    """What weights take by the size that a name says; empty where it says none."""
    sizes = [float(size[1]) for word in words(name) if (size := _SIZE.fullmatch(word))]
    if not sizes:
        return ""
    taken = max(sizes) * 1e9 * 2 / GIB
    return f" By the size in its name its weights alone are about {taken:,.0f} GiB in bf16, and a quarter of that in 4 bits."
