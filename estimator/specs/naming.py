"""Which known model people mean: exactly one of its names, or one of them with words that do not make it another model.

Those are the maker's before it ("Meta Llama 3.1 8B") and, after it, how it was tuned ("llama 3.1 8b chat"). Nothing is taken
for a model that is merely like it in spelling.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from estimator.contract.errors import UnknownModel
from estimator.facts import catalogue
from estimator.facts.catalogue import Entry, Folders
from estimator.facts.spelling import folded, joined, shown, words

TUNED = (
    *("instruct", "inst", "it", "chat", "hf", "latest", "sft", "dpo", "orpo", "kto", "simpo", "grpo", "rlvr"),
    *("abliterated", "derestricted", "heretic", "cloud", "free"),
)
"""Last words of a checkpoint's name that do not make it another model: how it was trained, what was taken out of its weights, and
where it is served (Ollama's cloud, OpenRouter's free)."""
UNTUNED = ("base", "pt")
"""Last words that do not make it another model if they follow a size: "8b base"; in "bert base" the word is the size."""
_SIZED = re.compile(r"\d[bm]$")


class Named(NamedTuple):
    """A known model that was meant."""

    entry: Entry
    said: tuple[str, ...] = ()
    """How it was understood, where that is not plain from its name."""


def forget() -> None:
    """Read the names of models anew when they are asked for next: a model was added."""
    catalogue.forget()
    _cores.cache_clear()
    _makers.cache_clear()


def named(folders: Folders, text: str) -> Named | None:
    """The known model that a text names; None if there is none, `UnknownName` if there are several."""
    organisation, _, name = text.rstrip("/").rpartition("/")
    maker = organisation.rpartition("/")[2]
    exact = catalogue.entry(folders, name)
    found = exact or next(_without(folders, words(name)), None)
    if found is None:
        return None
    theirs = not maker or _is_of(folders, found, maker)
    if not exact and not theirs:
        return None
    said = []
    if not theirs:
        said.append(f"{text} taken for {found.spoken}, by the last part of its name alone")
    elif not exact and not maker:
        said.append(f"{text} read as {found.spoken}")
    if found.other:
        said.append(f"{found.spoken}: the same architecture and sizes as {found.path.stem}")
    return Named(found, tuple(said))


def _without(folders: Folders, parts: list[str]) -> Iterator[Entry]:
    """What the words mean without the last ones that say how it was tuned, and then without a maker's before them."""
    for start in range(min(4, len(parts))):
        core = _core(parts[start:])
        found = catalogue.entry(folders, " ".join(parts[start:])) if start else None
        found = found or catalogue.entry(folders, " ".join(core)) or _of_core(folders, joined(core), " ".join(parts))
        if found and (not start or _is_of(folders, found, joined(parts[:start]))):
            yield found


def _core(parts: list[str]) -> list[str]:
    """Words without the last ones that do not make it another model."""
    end = len(parts)
    while end > 1 and (parts[end - 1] in TUNED or (parts[end - 1] in UNTUNED and _SIZED.search(parts[end - 2]))):
        end -= 1
    return parts[:end]


def _of_core(folders: Folders, core: str, asked: str) -> Entry | None:
    """The model whose checkpoints are called so; `UnknownName` where several are."""
    found = {entry.path: entry for directory in reversed(folders) for entry in _cores(directory).get(core, ())}
    if len(found) > 1:
        raise UnknownModel(f"several models are called {shown(asked)}: {' or '.join(sorted(e.name for e in found.values()))}?")
    return next(iter(found.values()), None)


@cache
def _cores(directory: Path) -> dict[str, tuple[Entry, ...]]:
    """Entries by their names without what does not make another model of them, where that leaves anything out."""
    found: dict[str, dict[object, Entry]] = {}
    for entry in catalogue.entries(directory):
        parts = words(entry.name.rpartition("/")[2])
        if (core := _core(parts)) != parts:
            found.setdefault(joined(core), {}).setdefault(entry.path, entry)
    return {core: tuple(entries.values()) for core, entries in found.items()}


def _is_of(folders: Folders, found: Entry, maker: str) -> bool:
    """Whether a name is that of an organisation that has the model, or begins it: meta, meta-llama."""
    begins = folded(maker) or " "
    return any(one.startswith(begins) for directory in folders for one in _makers(directory).get(found.path, ()))


@cache
def _makers(directory: Path) -> dict[Path, set[str]]:
    """By model, the organisations that its names say."""
    makers = defaultdict(set)
    for entry in catalogue.entries(directory):
        if maker := folded(entry.name.rpartition("/")[0]):
            makers[entry.path].add(maker)
    return dict(makers)
