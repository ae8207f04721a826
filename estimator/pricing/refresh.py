"""Today's prices from gpuhunt's catalogue, as a price list of the user's: an extra, and the only part that needs the network.

gpuhunt (dstack, MPL-2.0) downloads a catalogue of each of the larger providers, whose version begins with its day. A price
goes into the list if the accelerator is one of ours; of several zones of a region, and of several machines of a name, the
cheapest counts. Its names do not tell an A100 on PCIe from one on SXM: both are taken for SXM.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from estimator.contract.errors import InvalidValue
from estimator.contract.validation import explain
from estimator.pricing import prices
from estimator.pricing.offer import Offer, exact

WHERE = "prices refresh"
_TABLE = "{o.instance} {o.accelerator} {o.gpus} {vcpus} {memory} {o.price_per_hour}"


class Refreshed(NamedTuple):
    """What was written, and what was not."""

    path: Path
    rows: int
    unknown: list[str]
    """Accelerators that are none of ours."""
    silent: list[str]
    """Providers of which nothing came."""


def refresh(path: Path, providers: Sequence[str] = (), today: date | None = None) -> Refreshed:
    """Write today's prices of some providers, or of all, to a file; `InvalidJob` if there are none, and the file stays as it was.

    `ImportError` without gpuhunt.
    """
    catalogue = _catalogue()
    try:
        items = catalogue.query(provider=list(providers) or None, min_gpu_count=1)
    except ValueError as error:  # a provider that it does not know, or cannot reach
        raise InvalidValue(f"{error}; gpuhunt knows {', '.join(_known())}", WHERE) from None
    except Exception as error:
        raise InvalidValue(
            f"the providers could not be asked ({str(error) or type(error).__name__}); nothing was written", WHERE
        ) from None
    days = {name: _day(one.version) for name, one in catalogue.catalog.items()}
    found, unknown = offers_of(items, days, today or date.today())
    silent = [name for name in providers or _known() if name not in days]
    if not found:
        lost = f"; nothing came from {', '.join(silent)}" if silent else ""
        raise InvalidValue(f"of {len(items)} offers none is of an accelerator that is known{lost}; nothing was written", WHERE)
    _write(path, as_text(found))
    return Refreshed(path, len(found), unknown, silent)


def _catalogue() -> Any:
    """gpuhunt's catalogue, loaded; it logs each failure with its traceback, of which one sentence is enough."""
    import gpuhunt

    logging.getLogger("gpuhunt").setLevel(logging.CRITICAL + 1)
    catalogue = gpuhunt.Catalog(auto_reload=False)
    try:
        catalogue.load()
    except Exception as error:
        reason = error.__cause__ or error
        raise InvalidValue(f"gpuhunt's catalogue could not be loaded ({reason}); nothing was written", WHERE) from None
    return catalogue


def _known() -> list[str]:
    from gpuhunt._internal.catalog import OFFLINE_PROVIDERS

    return sorted(OFFLINE_PROVIDERS)


def _day(version: str) -> date | None:
    """The day that a catalogue's version begins with: 20260818-42."""
    try:
        return date.fromisoformat(f"{version[:4]}-{version[4:6]}-{version[6:8]}")
    except ValueError:
        return None


def offers_of(items: Iterable[Any], days: dict[str, date | None], today: date) -> tuple[list[Offer], list[str]]:
    """gpuhunt's items as offers, the cheapest of each key, and the accelerators that none of ours is."""
    found: dict[tuple[str, str, str, str], Offer] = {}
    unknown = set()
    for item in items:
        name = _accelerator(item.gpu_name, item.gpu_memory)
        if name is None:
            unknown.add(str(item.gpu_name))
        if name is None or not item.price > 0:
            continue
        offer = _offer(item, name, days.get(item.provider) or today)
        if offer.key not in found or offer.price_per_hour < found[offer.key].price_per_hour:
            found[offer.key] = offer
    return list(found.values()), sorted(unknown)


def _offer(item: Any, accelerator: str, as_of: date) -> Offer:
    """An item of gpuhunt's as an offer."""
    try:
        return Offer(
            provider=item.provider,
            instance=re.sub(r"\s+", "-", item.instance_name),
            accelerator=accelerator,
            gpus=item.gpu_count,
            vcpus=item.cpu or None,
            memory_gib=exact(item.memory) if item.memory else None,
            price_per_hour=exact(item.price),
            currency="USD",
            kind="spot" if item.spot else "on-demand",
            region=item.location,
            source=f"gpuhunt's catalogue of {item.provider}",
            as_of=as_of,
        )
    except ValidationError as error:
        raise InvalidValue(f"{item.instance_name} of {item.provider}: {explain(error, Offer)}", WHERE) from None


def _accelerator(name: str | None, memory: float | None) -> str | None:
    """Our name of gpuhunt's accelerator: with its memory where there are several of a name, as of the A100."""
    for candidate in (f"{name}-{memory or 0:g}gb", str(name)):
        if (ours := prices.our_name(candidate)) is not None:
            return ours
    return None


def as_text(found: Iterable[Offer]) -> str:
    """Offers as a price list: a table for those that have all but the instance in common."""
    import yaml

    tables: dict[tuple[Any, ...], list[str]] = {}
    for o in sorted(found, key=lambda offer: offer.key):
        line = _TABLE.format(o=o, vcpus=o.vcpus or prices.UNKNOWN, memory=o.memory_gib or prices.UNKNOWN)
        tables.setdefault((o.provider, o.region, o.kind, o.currency, o.source, o.as_of), []).append(line)
    shared = ("provider", "region", "kind", "currency", "source", "as_of")
    entries = [{**dict(zip(shared, key, strict=True)), "table": "\n".join(lines) + "\n"} for key, lines in tables.items()]
    return yaml.safe_dump({"prices": entries}, sort_keys=False, allow_unicode=True)


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all: first under another name next to it, then in its place."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as beside:
            whole = Path(beside) / path.name
            whole.write_text(text, encoding="utf-8")
            os.replace(whole, path)
    except OSError as error:
        raise InvalidValue(f"cannot be written: {error.strerror or error}", str(path)) from None
