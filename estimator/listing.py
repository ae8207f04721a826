"""What is known: models and accelerators, as rows."""

from __future__ import annotations

from datetime import date
from typing import Any

from estimator import catalogue
from estimator.errors import UnknownName
from estimator.families import count
from estimator.hardware.accelerator import FOLDER, accelerator
from estimator.job import Hardware
from estimator.job.hardware import Rent
from estimator.pricing import prices
from estimator.pricing.cost import suiting
from estimator.specs.published import PublishedModel, every, folders
from estimator.version import DATA_VERSION

Rows = list[dict[str, Any]]


def models(search: str = "", least: float = 0, most: float = float("inf")) -> Rows:
    """The known models of `least` to `most` parameters whose name has every word of `search`, smallest first; files that
    describe none are left out. `UnknownName` if no name has the words."""
    named = [model for model in every()[0] if _named(model, search)]
    if search and not named:
        near = catalogue.nearest(folders(), search)
        hint = f" Did you mean {' or '.join(near)}?" if near else " `willitfit models` lists them all."
        raise UnknownName(f"no model's name has {search[: catalogue.LONGEST]!r} in it.{hint}")
    rows = [_row(model) for model in named]
    return sorted((row for row in rows if least <= row["parameters"] <= most), key=lambda row: row["parameters"])


def _named(model: PublishedModel, search: str) -> bool:
    """Whether one of its names has all words in it, however they are written; or all of them as one."""
    names = [catalogue.folded(name) for name in (model.name, *model.aliases)]
    words = [catalogue.folded(word) for word in search.split()]
    return not search or (all(words) and any(all(word in name for word in words) or "".join(words) in name for name in names))


def _row(model: PublishedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "parameters": int(model.parameters.value) if model.parameters else count(model.architecture),
        "architecture": model.architecture.model_type,
        "layers": model.architecture.num_hidden_layers,
        "context": model.context or model.architecture.longest_sequence,
        "released": model.released,
        "licence": model.licence,
        "aliases": model.aliases,
    }


def gpus() -> Rows:
    """Every accelerator, smallest memory first."""
    found = [accelerator(name) for name in catalogue.names(FOLDER)]
    return [
        {
            "name": card.name,
            "memory_bytes": card.memory_bytes,
            "memory_verified": card.memory.verified,
            "bf16_tflops": card.peak["bf16"].value if "bf16" in card.peak else None,
            "bandwidth_gb_per_second": card.memory_bandwidth.value,
            "usd_per_gpu_hour": _least(card.name),
            "aliases": card.aliases,
        }
        for card in sorted(found, key=lambda c: c.memory_bytes)
    ]


def _least(card: str) -> str | None:
    """Dollars per GPU-hour of the cheapest offer, by prices that were not old when the data were shipped, where there are any."""
    dollars = Hardware(rent=Rent(currency="USD"))
    known = [offer.price_per_gpu_hour for offer in suiting(dollars, card, date.fromisoformat(DATA_VERSION))]
    return str(round(min(known), 2)) if known else None


def offers(words: str = "") -> Rows:
    """The offers that have every one of some words, cheapest per GPU-hour first; `UnknownName` if none has."""
    return [
        {
            "provider": offer.provider,
            "instance": offer.instance,
            "accelerator": offer.accelerator,
            "gpus": offer.gpus,
            "vcpus": offer.vcpus,
            "memory_gib": None if offer.memory_gib is None else str(offer.memory_gib),
            "kind": offer.kind,
            "region": offer.region,
            "price_per_hour": str(offer.price_per_hour),
            "per_gpu": str(round(offer.price_per_gpu_hour, 4)),
            "currency": offer.currency,
            "as_of": offer.as_of.isoformat(),
            "source": offer.source,
        }
        for offer in prices.search(words)
    ]
