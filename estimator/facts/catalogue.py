"""Folders of facts: one YAML file per thing, found by its name or an alias, however it is written.

A file's name is the canonical name of what it describes. Asking for one reads that file alone; an alias is looked up in
the files' lists of them, which are read without parsing the file where they are plain.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from estimator.contract.errors import InvalidJob, UnknownHardware, UnknownModel, UnknownName, near_names
from estimator.contract.reading import load_yaml, parse_yaml
from estimator.facts.spelling import LONGEST, folded, joined, shown, words

Folders = tuple[Path, ...]
"""Where things are described; what is in two of them counts as it is in the first."""
LISTS = ("aliases", "same_architecture")
"""A file's lists of names: its own, and those of other things that it describes as well."""
_PLAIN = re.compile(r"[\w ./-]*(?:, '?[\w ./-]+'?)*|'[\w ./-]+'(?:, '?[\w ./-]+'?)*")
"""A list of names between its brackets, as the shipped files write it: on one line, a name quoted at most where it is a
number."""


_SIZE = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])")
"""A word that is a size: 8b, 270m, 8x7b."""


class Entry(NamedTuple):
    """One name of something."""

    name: str
    """The name as the file writes it, organisation and all."""
    path: Path
    other: bool = False
    """Whether the name is that of another thing, which has the same description."""

    @property
    def spoken(self) -> str:
        """What an answer calls it: the canonical name, but of another thing its own."""
        return self.name.rpartition("/")[2] if self.other else self.path.stem


@cache
def folder(name: str) -> Path:
    """A folder of data, which an installed package has within it, and a checkout beside it."""
    package = Path(__file__).parents[1]
    return package / name if (package / name).is_dir() else package.parent / name


@cache
def entries(directory: Path) -> tuple[Entry, ...]:
    """Every name of everything in a folder, canonical ones first."""
    files = [directory / name for name in sorted(os.listdir(directory)) if name.endswith(".yaml")]
    found = [Entry(path.stem, path) for path in files]
    for path in files:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        for key in LISTS:
            found += [Entry(name, path, key != LISTS[0]) for name in _listed(text, key)]
    return tuple(found)


def _listed(text: str, key: str) -> list[str]:
    """A list of names in a file's text; nothing where that cannot be read, which is said when the file is asked for."""
    if key not in text:
        return []
    line = text.partition(f"\n{key}: [")[2].partition("\n")[0]
    if line.endswith("]") and _PLAIN.fullmatch(line[:-1]):
        return [name.strip("'") for name in line[:-1].split(", ") if name]
    try:
        content = parse_yaml(text, "")
    except InvalidJob:
        return []
    names = content.get(key) if isinstance(content, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else []


@cache
def _index(directory: Path) -> dict[str, Entry]:
    """Every name of a folder, folded, with and without its organisation."""
    index: dict[str, Entry] = {}
    for entry in entries(directory):
        *_, name = whole = entry.name.split("/")
        for written in (name, entry.name)[: len(whole)]:
            index.setdefault(folded(written), entry)
    index.pop("", None)
    return index


def forget() -> None:
    """Read the folders anew when they are asked for next: a file was added."""
    for table in (entries, _index, _sizes):
        table.cache_clear()


def paths(folders: Folders) -> list[Path]:
    """Every file, by its canonical name; of several with one name that of the first folder."""
    found: dict[str, Path] = {}
    for directory in folders:
        for path in directory.glob("*.yaml"):
            found.setdefault(path.stem, path)
    return [found[name] for name in sorted(found)]


def names(*folders: Path) -> list[str]:
    """Canonical names of everything."""
    return [path.stem for path in paths(folders)]


def entry(folders: Folders, name: str) -> Entry | None:
    """What has a name or alias, if anything has; a file's own name is looked up without reading any."""
    for directory in folders:
        for stem in (name, "-".join(words(name))):
            if has(directory, stem):
                return Entry(stem, directory / f"{stem}.yaml")
        if found := _index(directory).get(folded(name)):
            return found
    return None


def has(directory: Path, stem: str) -> bool:
    """Whether a folder has a file of exactly this canonical name."""
    return bool(words(stem)) and not {"/", "\\"} & {*stem} and os.path.isfile(directory / f"{stem}.yaml")


def known(folders: Folders, name: str) -> Path | None:
    """The file behind a name or alias, if there is one."""
    found = entry(folders, name)
    return None if found is None else found.path


def find(folders: Folders, name: str, kind: str) -> Path:
    """The file behind a name or alias; `UnknownName` if there is none, with the nearest."""
    found = known(folders, name)
    if found is None:
        raise unknown(folders, name, kind)
    return found


def unknown(folders: Folders, name: str, kind: str, like: str = "") -> UnknownName:
    """The error that nothing of a kind has this name, with the names nearest to it, or to `like` if that is given."""
    near = nearest(folders, like or name)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"`willitfit {kind}s` lists them."
    of = UnknownModel if kind == "model" else UnknownHardware
    return of(f"no {kind} is called {shown(name)}. {hint}")


def nearest(folders: Folders, name: str) -> list[str]:
    """Up to three names that a name may have been meant for; of one that lacks only its size, all sizes."""
    if found := {entry.path: entry for directory in reversed(folders) for entry in _sizes(directory).get(folded(name), ())}:
        return [entry.spoken for entry in sorted(found.values(), key=lambda one: _size_of(one.name))]
    index = {key: found.spoken for directory in reversed(folders) for key, found in _index(directory).items()}
    near = near_names(folded(name[:LONGEST]), index, 5, 0.6)
    return list(dict.fromkeys(index[match] for match in near))[:3]


def _size_of(name: str) -> float:
    """The first size that a name says, in billions; 0 where it says none."""
    found = next((match for word in words(name)[1:] if (match := _SIZE.fullmatch(word))), None)
    return (int(found[1] or 1) * float(found[2]) * (1 if found[3] == "b" else 1e-3)) if found else 0


@cache
def _sizes(directory: Path) -> dict[str, tuple[Entry, ...]]:
    """Names with a size, by what is before it, as they are compared: llama3.2 has those of 1b and 3b. Of a file one name each."""
    found: dict[str, dict[Path, Entry]] = {}
    for entry in entries(directory):
        parts = words(entry.name.rpartition("/")[2])
        sized = next((at for at, word in enumerate(parts) if at and _SIZE.fullmatch(word)), None)
        if sized:
            found.setdefault(joined(parts[:sized]), {}).setdefault(entry.path, entry)
    return {before: tuple(one.values()) for before, one in found.items()}


@cache
def shipped(path: Path) -> Any:
    """The content of one of the package's own YAML files, read once: not to be changed."""
    return load_yaml(path)
