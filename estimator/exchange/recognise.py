"""Whose file it is: told by what it says, never by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from estimator.contract.errors import InvalidJob, NoJob, NotModelled, Unreadable
from estimator.contract.reading import load_yaml, parse_json, parse_toml, parse_yaml
from estimator.contract.validation import validated
from estimator.exchange.configuration import FOLDER

_TABLE = re.compile(r"^\s*\[\[?[\w.\"' -]{1,120}\]\]?\s*(#.*)?$", re.MULTILINE)
_COMMAND = re.compile(r"^\S+(?:\s.*)?\s--?\w", re.DOTALL)
"""A command in which a colon stands, such as one of JSON, is YAML of a single key."""
_SETS = re.compile(r"^\s*[\w.\"-]{1,120}\s*=", re.MULTILINE)


class _Known(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    framework: str
    read: bool = True


class _File(_Known):
    any: list[list[str]]


class _Text(_Known):
    pattern: str


class _Call(_Known):
    call: str


class _Program(_Known):
    program: str
    words: list[str] = []
    options: list[str] = []


class _All(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    files: list[_File]
    texts: list[_Text]
    programs: list[_Program]
    calls: list[_Call]


@cache
def known() -> _All:
    """How each is told."""
    path = FOLDER / "known.yaml"
    return validated(_All, load_yaml(path), str(path))


def settings(text: str, where: str) -> Mapping[str, Any] | None:
    """A file's settings, if it is JSON, TOML or YAML that holds a mapping; None for other text, such as a script."""
    stripped = text.lstrip()
    if stripped.startswith("{"):
        found = parse_json(text, where)
    elif stripped.startswith("#!") or not stripped:
        return None
    elif is_toml(text):
        found = parse_toml(text, where)
    else:
        try:
            found = parse_yaml(text, where)
        except Unreadable:
            if command_like(text):
                return None
            raise
    if not isinstance(found, Mapping) or (len(found) == 1 and _COMMAND.search(str(next(iter(found))))):
        return None
    return {str(key): value for key, value in found.items()}


def is_toml(text: str) -> bool:
    """Whether text has TOML's tables and settings."""
    return not text.lstrip().startswith(("{", "#!")) and bool(_TABLE.search(text) and _SETS.search(text))


def command_like(text: str) -> bool:
    """Whether text that has no settings may be a command: options, continued lines, or several documents of a cluster."""
    return bool(re.search(r"(?:^|\s)--?\w|\\\n|^apiVersion:|^#SBATCH", text, re.MULTILINE))


def of_documents(text: str) -> str | None:
    """The first of a cluster's several documents that is known; None where text is not such."""
    if not _DOCUMENT.search(text):
        return None
    parts = [part for part in _BETWEEN.split(text) if part.strip()]
    for part in parts if len(parts) > 1 else ():
        with suppress(NotModelled):
            if (found := settings(part, "file")) is not None and file(found) is not None:
                return part
    return None


_DOCUMENT, _BETWEEN = re.compile(r"^apiVersion:", re.MULTILINE), re.compile(r"^---[^\n]*$", re.MULTILINE)


def file(given: Mapping[str, Any]) -> str | None:
    """The framework whose keys these are; None if none has them. Raises `NotModelled` for one that is not read."""
    return _named(next((one for one in known().files if any(all(_has(given, key) for key in keys) for keys in one.any)), None))


def text(given: str) -> str | None:
    """The framework of text that is neither settings nor a command."""
    return _named(next((one for one in known().texts if re.search(one.pattern, given)), None))


def program(name: str, words: list[str], options: Mapping[str, Any]) -> str | None:
    """The framework that a program belongs to, by its name, its first word, and its options."""
    for one in known().programs:
        if not re.fullmatch(one.program, name) or (one.words and (not words or words[0] not in one.words)):
            continue
        if all(option in options for option in one.options):
            return _named(one)
    return None


def called(name: str) -> str | None:
    """The framework that a script calls, by the imported name of what it calls."""
    return _named(next((one for one in known().calls if re.fullmatch(one.call, name)), None))


def server(name: str) -> str:
    """Whose program this is, read or not; nothing for one that nobody is known to write."""
    return next((one.framework for one in known().programs if re.fullmatch(one.program, name)), "")


def _named(one: _Known | None) -> str | None:
    if one is not None and not one.read:
        raise NotModelled(f"this is a file of {one.framework}, which is not read yet; read are {', '.join(readable())}", "file")
    return one.framework if one else None


def readable() -> list[str]:
    """The frameworks whose files are read."""
    everything: list[_Known] = [*known().files, *known().texts, *known().programs, *known().calls]
    return list(dict.fromkeys(one.framework for one in everything if one.read))


def unknown(where: str, given: Mapping[str, Any] | None = None) -> InvalidJob:
    """What to say of a file that nobody is known to write: of settings, which it has."""
    read = ", ".join(readable())
    if given is None:
        return NoJob(f"is no configuration or command that is known here; read are {read}", where)
    keys = ", ".join(key[:30] for key in [*given][:5]) + (", …" if len(given) > 5 else "")
    return NoJob(f"no framework is told by its keys ({keys}): say whose it is with --from, which is one of {read}", where)


def _has(given: Mapping[str, Any], key: str) -> bool:
    part: Any = given
    for name in key.split("."):
        if not isinstance(part, Mapping):
            return False
        names = {str(one).replace("-", "_"): one for one in part}
        if name not in names:
            return False
        part = part[names[name]]
    return True
