"""What is known: models, accelerators, nodes and offers, as rows; `rows.py` says what is in them."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from estimator.contract.errors import UnknownModel, UnknownName
from estimator.contract.job import Hardware
from estimator.contract.job.hardware import Rent
from estimator.contract.rows import GpuRow, ModelRow, NodeRow, OfferRow
from estimator.contract.version import DATA_VERSION
from estimator.facts import catalogue
from estimator.facts.spelling import folded, shown, sought
from estimator.families import count
from estimator.families.other import OtherSpec
from estimator.hardware.accelerator import FOLDER as CARDS
from estimator.hardware.accelerator import Accelerator, accelerator
from estimator.hardware.node import FOLDER as NODES
from estimator.hardware.node import Node, node
from estimator.pricing import prices
from estimator.pricing.cost import suiting
from estimator.specs import naming
from estimator.specs.published import PublishedModel, every, folders, read

Rows = list[dict[str, Any]]


def models(search: str = "", least: float = 0, most: float = float("inf")) -> Rows:
    """The known models of `least` to `most` parameters whose name has every word of `search`, smallest first; files that
    describe none are left out. `UnknownName` if no name has the words."""
    named = [model for model in every()[0] if _named(model, search)] or _meant(search)
    if not named:
        near = catalogue.nearest(folders(), search)
        hint = f" Did you mean {' or '.join(near)}?" if near else " `willitfit models` lists them all."
        raise UnknownModel(f"no model's name has {shown(search)} in it.{hint}")
    rows = [_row(model) for model in named]
    asked = (row for row in rows if _within(row["parameters"], least, most))
    return sorted(asked, key=lambda row: (row["parameters"] is None, row["parameters"]))


def _meant(search: str) -> list[PublishedModel]:
    """The model that a search names, in words that no name of it has."""
    found = naming.named(folders(), search)
    return [read(found.entry.path)] if found else []


def _named(model: PublishedModel, search: str) -> bool:
    """Whether one of its names has all words in it, however they are written; or all of them as one."""
    names = [folded(name) for name in (model.name, *model.aliases, *model.same_architecture)]
    words = sought(search)
    return not words or (all(words) and any(all(word in name for word in words) or folded(search) in name for name in names))


def _parameters(model: PublishedModel) -> int | None:
    """As published, or counted; None of a model that no family here describes and whose file lists none."""
    if model.parameters:
        return int(model.parameters.value)
    if isinstance(model.architecture, OtherSpec):
        return model.counted.total if model.counted else None
    return count(model.architecture)


def _within(parameters: int | None, least: float, most: float) -> bool:
    """Whether a number of parameters is within bounds; one that is not known, where there are none."""
    return (least, most) == (0, float("inf")) if parameters is None else least <= parameters <= most


def _row(model: PublishedModel) -> dict[str, Any]:
    return ModelRow(
        name=model.name,
        parameters=_parameters(model),
        architecture=model.architecture.model_type,
        layers=model.architecture.num_hidden_layers,
        context=model.context or model.architecture.longest_sequence,
        released=model.released,
        licence=model.licence,
        aliases=model.aliases,
        same_architecture=model.same_architecture,
    ).model_dump(mode="json")


def gpus(search: str = "") -> Rows:
    """The accelerators that have every word of `search` in a name, or as vendor, architecture, form or memory (24GB), smallest
    memory first. `UnknownName` if none has."""
    found = [card for card in map(accelerator, catalogue.names(CARDS)) if _has(search, (card.name, *card.aliases), _kinds(card))]
    if not found:
        try:
            found = [accelerator(search)]
        except UnknownName:
            raise _nothing("gpu", CARDS, search) from None
    return [_gpu(card) for card in sorted(found, key=lambda card: (card.memory_bytes, card.name))]


def nodes(search: str = "") -> Rows:
    """The nodes that have every word of `search` in a name, or as provider, accelerator or number of GPUs (8x), by provider.
    `UnknownName` if none has."""
    every = map(node, catalogue.names(NODES))
    found = [
        each
        for each in every
        if _has(search, (each.name, *each.aliases), (each.provider, each.accelerator, f"{each.gpus.value}x", each.joined_by))
    ]
    if not found:
        try:
            found = [node(search)]
        except UnknownName:
            raise _nothing("node", NODES, search) from None
    return [_node(each) for each in sorted(found, key=lambda each: (each.provider, each.accelerator, each.gpus.value))]


def _kinds(card: Accelerator) -> tuple[str, ...]:
    sold = f"{round(card.framebuffer.value / 1024)}gb"
    return (card.vendor, card.architecture, card.form, sold, *((card.interconnect.kind,) if card.interconnect else ()))


def _has(search: str, names: tuple[str, ...], kinds: tuple[str, ...]) -> bool:
    """Whether each word is part of a name, however written, or is one of the kinds; or all words together are part of a name."""
    names = tuple(map(folded, names))
    words = sought(search)
    known = set(map(folded, kinds))
    each = all(word and (word in known or any(word in name for name in names)) for word in words)
    return each or (folded(search) in names)


def _nothing(kind: str, folder: Path, search: str) -> UnknownName:
    near = catalogue.nearest((folder,), search)
    hint = f" Did you mean {' or '.join(near)}?" if near else f" `willitfit {kind}s` lists them all."
    return UnknownName(f"no {kind} has {shown(search)} in its name or among its kinds.{hint}")


def _gpu(card: Accelerator) -> dict[str, Any]:
    link = card.interconnect
    return GpuRow(
        name=card.name,
        vendor=card.vendor,
        architecture=card.architecture,
        memory_bytes=card.memory_bytes,
        memory_verified=card.memory.verified,
        bf16_tflops=card.peak["bf16"].value if "bf16" in card.peak else None,
        bandwidth_gb_per_second=card.memory_bandwidth.value,
        interconnect=link.kind if link else None,
        interconnect_gb_per_second=link.bandwidth.value if link else None,
        power_watts=card.power.value if card.power else None,
        usd_per_gpu_hour=_least(card.name),
        unverified=[name for name, fact in card.facts.items() if not fact.verified],
        aliases=card.aliases,
    ).model_dump(mode="json")


def _node(each: Node) -> dict[str, Any]:
    link, network = each.link, each.network
    return NodeRow(
        name=each.name,
        provider=each.provider,
        accelerator=each.accelerator,
        gpus=each.gpus.value,
        interconnect=link.kind if link else None,
        interconnect_gb_per_second=link.bandwidth.value if link else None,
        network=network.kind if network else None,
        network_gb_per_second=network.bandwidth.value if network else None,
        vcpus=each.vcpus.value if each.vcpus else None,
        host_memory_gib=each.memory.value if each.memory else None,
        unverified=[name for name, fact in each.facts.items() if not fact.verified],
        aliases=each.aliases,
    ).model_dump(mode="json")


def _least(card: str) -> str | None:
    """Dollars per GPU-hour of the cheapest offer, by prices that were not old when the data were shipped, where there are any."""
    dollars = Hardware(rent=Rent(currency="USD"))
    known = [offer.price_per_gpu_hour for offer in suiting(dollars, card, date.fromisoformat(DATA_VERSION))]
    return str(round(min(known), 2)) if known else None


def offers(words: str = "") -> Rows:
    """The offers that have every one of some words, cheapest per GPU-hour first; `UnknownName` if none has."""
    return [
        OfferRow(
            provider=offer.provider,
            instance=offer.instance,
            accelerator=offer.accelerator,
            gpus=offer.gpus,
            vcpus=offer.vcpus,
            memory_gib=None if offer.memory_gib is None else str(offer.memory_gib),
            kind=offer.kind,
            region=offer.region,
            price_per_hour=str(offer.price_per_hour),
            per_gpu=str(round(offer.price_per_gpu_hour, 4)),
            currency=offer.currency,
            as_of=offer.as_of,
            source=offer.source,
        ).model_dump(mode="json")
        for offer in prices.search(words)
    ]
