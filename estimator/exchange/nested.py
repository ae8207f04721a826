"""Settings within settings, by their dotted names, and what stands for another: OmegaConf's `${a.b}` and Hydra's `a.b=c`.

omegaconf 2.3 (`oc.select`), hydra 1.3 (the grammar of overrides).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from estimator.contract.errors import InvalidValue
from estimator.exchange.configuration import LONGEST_NAME
from estimator.exchange.launch import scalar
from estimator.exchange.shell import Word

_STANDS = re.compile(r"\$\{([\w.]{1,200})\}")
_SELECTED = re.compile(r"\$\{oc\.select:\s*([\w.]{1,200})\s*(?:,\s*([\w./+-]{0,100})\s*)?\}")
_OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_][\w.@/-]{0,200})=(.*)", re.DOTALL)
MOST_STEPS = 8
"""How often one setting stands for the next."""


def flattened(given: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Settings by their dotted names; parts stay parts where they are empty, or their names too long to be anyone's.
    Files are read to 64 levels only."""
    flat: dict[str, Any] = {}
    for key, value in given.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and value and len(name) <= LONGEST_NAME:
            flat |= flattened(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def interpolated(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with what they stand for in its place; None for what is not there."""
    return {key: _standing(flat, value) for key, value in flat.items()}


def _standing(flat: Mapping[str, Any], value: Any) -> Any:
    for _ in range(MOST_STEPS):
        if not isinstance(value, str) or "${" not in value:
            return value
        if match := _STANDS.fullmatch(value.strip()):
            value = flat.get(match[1])
        elif match := _SELECTED.fullmatch(value.strip()):
            value = flat.get(match[1])
            value = scalar(match[2]) if value is None and match[2] is not None else value
        else:
            return value
    return None


def overrides(words: Sequence[Word]) -> tuple[dict[str, Any], dict[str, int]]:
    """Hydra's overrides by their names, and the line of each; other words are passed over."""
    found: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for word in words:
        if match := _OVERRIDE.fullmatch(word.text.lstrip("-")):
            found[match[1]] = scalar(match[2])
            lines.setdefault(match[1], word.line)
    return found, lines


def overridden(given: Mapping[str, Any], words: Sequence[Word]) -> dict[str, Any]:
    """Settings with those that stand after their file on a command, OmegaConf's `a.b=c`. Raises `InvalidValue` for one that is
    within what holds no settings."""
    found = dict(given)
    for key, value in overrides(words)[0].items():
        found = _with(found, key, key.split("."), value)
    return found


def _with(given: Mapping[str, Any], key: str, names: Sequence[str], value: Any) -> dict[str, Any]:
    name, *inner = names
    if not inner:
        return {**given, name: value}
    part = given.get(name)
    if part is not None and not isinstance(part, Mapping):
        raise InvalidValue(f"{name[:40]} holds {str(part)[:40]!r} in the file, and no settings", key[:80])
    return {**given, name: _with(part or {}, key, inner, value)}
