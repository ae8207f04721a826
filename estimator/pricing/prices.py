"""What can be rented: the shipped price list, and the user's own, which add to it and override it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from estimator.contract.errors import InvalidValue, UnknownName
from estimator.contract.reading import load_yaml
from estimator.contract.validation import explain
from estimator.facts import catalogue
from estimator.facts.spelling import folded, shown, sought
from estimator.hardware.accelerator import FOLDER
from estimator.pricing.offer import Offer

FILE = Path(__file__).parent / "prices.yaml"
VARIABLE = "WILLITFIT_PRICES"
"""The environment variable that names the user's price lists, as PATH names several; what is in two counts as in the first."""
COLUMNS = ("instance", "accelerator", "gpus", "vcpus", "memory_gib", "price_per_hour")
"""Columns of a table of offers in a price list, which has one instance a line."""
UNKNOWN = "-"


def offers() -> tuple[Offer, ...]:
    """Everything that can be rented, cheapest per GPU-hour first (currencies are not converted)."""
    return _merged((*own_files(), FILE))


def offers_of(name: str | None) -> tuple[Offer, ...]:
    """Those of one accelerator, in the same order; of no name none."""
    return _of_accelerators((*own_files(), FILE)).get(name or "", ())


@cache
def _of_accelerators(files: tuple[Path, ...]) -> dict[str, tuple[Offer, ...]]:
    found: dict[str, list[Offer]] = {}
    for offer in _merged(files):
        found.setdefault(offer.accelerator, []).append(offer)
    return {name: tuple(those) for name, those in found.items()}


def own_files() -> tuple[Path, ...]:
    """The user's price lists: those that the environment names, else the user's file, if there is one."""
    named = tuple(Path(os.path.expanduser(name)) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name)
    for path in named:
        if not os.path.isfile(path):
            raise InvalidValue(f"names {shown(str(path))}, which is no file; name a YAML file of prices", VARIABLE)
    return named or tuple(path for path in (own_file(),) if os.path.isfile(path))


def own_file() -> Path:
    """Where `willitfit prices refresh` writes, and what is read where the environment names nothing."""
    folder = os.path.expanduser(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    return Path(folder) / "willitfit" / "prices.yaml"


@cache
def _merged(files: tuple[Path, ...]) -> tuple[Offer, ...]:
    found = {offer.key: offer for path in reversed(files) for offer in read(path)}
    return tuple(sorted(found.values(), key=lambda offer: offer.price_per_gpu_hour))


@cache
def read(path: Path) -> tuple[Offer, ...]:
    """The offers of a file; `InvalidJob` names every row that is none."""
    content = load_yaml(path)
    entries = content.get("prices") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise InvalidValue("holds no list under 'prices:'; docs/prices.md shows one", str(path))
    found: dict[tuple[str, str, str, str], Offer] = {}
    wrong = []
    for where, row in _rows(entries, str(path)):
        try:
            offer = Offer.model_validate(row)
        except ValidationError as error:
            wrong.append(f"{where}: {explain(error, Offer)}")
            continue
        if offer.key in found:
            wrong.append(f"{where}: {' '.join(offer.key)} is in the list twice")
        name = our_name(offer.accelerator) or offer.accelerator
        found[offer.key] = offer if name == offer.accelerator else offer.model_copy(update={"accelerator": name})
    if wrong:
        raise InvalidValue("\n".join(wrong), str(path))
    return tuple(found.values())


def _rows(entries: list[Any], path: str) -> Iterator[tuple[str, Any]]:
    """Where each row is, and the row; one with a table stands for its lines, which have all else in common."""
    for place, entry in enumerate(entries, 1):
        where = f"row {place}"
        if not isinstance(entry, dict) or "table" not in entry:
            yield where, entry
            continue
        shared = {key: value for key, value in entry.items() if key != "table"}
        for line, text in enumerate(str(entry["table"]).splitlines(), 1):
            cells = text.split()
            if len(cells) != len(COLUMNS):
                said = f"{where}.{line}: {text!r} has {len(cells)} columns, not {len(COLUMNS)}: {', '.join(COLUMNS)}"
                raise InvalidValue(said, path)
            yield f"{where}.{line}", shared | {key: cell for key, cell in zip(COLUMNS, cells, strict=True) if cell != UNKNOWN}


@cache
def our_name(accelerator: str) -> str | None:
    """An accelerator's name in our catalogue, if it is in it."""
    path = catalogue.known((FOLDER,), accelerator)
    return None if path is None else path.stem


def search(words: str = "") -> list[Offer]:
    """The offers that have every word in provider, instance, accelerator, kind, region or currency; `UnknownName` if none has."""
    wanted = sought(words)
    found = [
        offer
        for offer in offers()
        if all(word and any(word in folded(text) for text in (*offer.key, offer.accelerator, offer.currency)) for word in wanted)
    ]
    if not found:
        raise UnknownName(f"no price has {shown(words)} in it. `willitfit prices` lists them all.")
    return found


def age_warning(as_of: date, today: date) -> str:
    """What to say of a price that is old."""
    return f"the price is {(today - as_of).days} days old ({as_of.isoformat()}): look it up, or run `willitfit prices refresh`"
