"""Folders of facts: one YAML file per thing, found by its name or an alias, however it is written.

A file's name is the canonical name of what it describes. Asking for one reads that file alone; an alias is looked up in
the files' `aliases:` lines, without parsing them.
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from estimator.errors import InvalidJob, UnknownName

Folders = tuple[Path, ...]
"""Where things are described; what is in two of them counts as it is in the first."""

LONGEST = 80
"""Characters of a name that are compared, and repeated in an error."""
_ALIASES = re.compile(r"^aliases:\s*\[(.*?)\]", re.MULTILINE | re.DOTALL)


def folded(name: str) -> str:
    """A name as it is compared: lower case, letters and digits only, organisation dropped ("meta-llama/…")."""
    return re.sub(r"[^a-z0-9.]+", "", name.rpartition("/")[2].lower())


def folder(package: str) -> Path:
    """The folder of an installed package that holds data."""
    return Path(str(import_module(package).__file__)).parent


@cache
def _index(directory: Path) -> dict[str, Path]:
    """Folded name or alias to file, for every file of a folder."""
    index = {}
    for path in sorted(directory.glob("*.yaml")):
        index[folded(path.stem)] = path
        match = _ALIASES.search(path.read_text(encoding="utf-8", errors="replace"))
        for alias in match.group(1).split(",") if match else ():
            index.setdefault(folded(alias.strip().strip("'\"")), path)
    return index


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


def known(folders: Folders, name: str) -> Path | None:
    """The file behind a name or alias, if there is one."""
    for directory in folders:
        if "/" not in name and os.path.isfile(path := directory / f"{name}.yaml"):
            return path
    return next((index[folded(name)] for index in map(_index, folders) if folded(name) in index), None)


def find(folders: Folders, name: str, kind: str) -> Path:
    """The file behind a name or alias; `UnknownName` if there is none, with the nearest."""
    found = known(folders, name)
    if found is None:
        shown = name if len(name) <= LONGEST else f"{name[:LONGEST]}…"
        near = nearest(folders, name)
        hint = f" Did you mean {' or '.join(near)}?" if near else f" `willitfit {kind}s` lists them."
        raise UnknownName(f"no {kind} is called {shown!r}.{hint}")
    return found


def nearest(folders: Folders, name: str) -> list[str]:
    """Up to three canonical names that a name may have been meant for."""
    index = {alias: path.stem for directory in reversed(folders) for alias, path in _index(directory).items()}
    near = get_close_matches(folded(name[:LONGEST]), index, n=5, cutoff=0.6)
    return list(dict.fromkeys(index[match] for match in near))[:3]


def read_text(path: Path) -> str:
    """A file's text; `InvalidJob` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJob(f"is not text in UTF-8 ({error.reason})", str(path)) from None
    except (OSError, ValueError) as error:
        raise InvalidJob(f"cannot be read: {getattr(error, 'strerror', None) or error}", str(path)) from None


def load_yaml(path: Path) -> Any:
    """A YAML file's content; `InvalidJob` if it cannot be read."""
    return parse_yaml(read_text(path), str(path))


@cache
def shipped(path: Path) -> Any:
    """The content of one of the package's own YAML files, read once: not to be changed."""
    return load_yaml(path)


def parse_yaml(text: str, where: str) -> Any:
    """YAML text as Python values; `InvalidJob` with line and column if it is broken."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InvalidJob(f"is not valid YAML{place}: {getattr(error, 'problem', error)}", where) from None
    except RecursionError:
        raise InvalidJob("is nested too deeply", where) from None
