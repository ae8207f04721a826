"""How the checkpoint is stored that a name means: what the name ends in, what its spec says, or what its config.json says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args

from estimator.contract.job.serving import GgufKind
from estimator.facts import catalogue
from estimator.facts.spelling import words

FILE = Path(__file__).parent / "stored.yaml"
GGUF, USUAL = "gguf", "q4_k_m"
"""A name's last word for llama.cpp's files, and the kind that is taken where the name says none, which is Ollama's."""


class Stored(NamedTuple):
    """A `format` by its name in a job, and its `group` where it is not the usual one; layers that are left `whole`.

    `named`: whether the caller said so, and not only a spec. `gguf`: whether it is llama.cpp's file. `says`: what to know of it.
    """

    format: str
    group: int | None = None
    whole: tuple[str, ...] = ()
    named: bool = True
    gguf: bool = False
    says: str = ""


def stripped(text: str) -> Iterator[tuple[str, Stored]]:
    """A name without the last words that say how its weights are stored, and how they are; the longest such ending first."""
    organisation, _, name = text.strip().rstrip("/").rpartition("/")
    parts = words(name)
    before = f"{organisation}/" if organisation else ""
    for ending, stored in _endings():
        if len(ending) < len(parts) and tuple(parts[-len(ending) :]) == ending:
            rest = " ".join(parts[: -len(ending)])
            yield before + rest, stored._replace(format=_of(organisation, ending, stored.format))


def _of(organisation: str, ending: tuple[str, ...], usual: str) -> str:
    """The format that a maker means by an ending."""
    maker = organisation.rpartition("/")[2].lower()
    rows = (row for row in catalogue.shipped(FILE) if tuple(words(row["ends"])) == ending)
    by: dict[str, str] = {name.lower(): chosen for row in rows for name, chosen in row.get("by", {}).items()}
    return by.get(maker, usual)


@cache
def _endings() -> tuple[tuple[tuple[str, ...], Stored], ...]:
    """The longest first."""
    found = {
        tuple(words(row["ends"])): Stored(row["format"], row.get("group"), says=row.get("says", ""))
        for row in catalogue.shipped(FILE)
    }
    found[GGUF,] = Stored(USUAL, gguf=True, says=f"its usual kind, {USUAL}: write another after a colon")
    for kind in get_args(GgufKind):
        for ending in (f"gguf {kind}", kind, f"ud {kind}", f"gguf ud {kind}"):
            found[tuple(words(ending))] = Stored(kind, gguf=True)
    for plain, kind in (("f16", "fp16"), ("bf16", "bf16"), ("fp16", "fp16")):
        found[tuple(words(f"gguf {plain}"))] = Stored(kind, gguf=True)
    return tuple(sorted(found.items(), key=lambda one: -len(one[0])))
