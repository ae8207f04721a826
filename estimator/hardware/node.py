"""Nodes: systems and instances of clouds, what joins their accelerators, and what joins them to other nodes."""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from estimator.contract.validation import validated
from estimator.facts import catalogue
from estimator.facts.fact import Fact
from estimator.facts.spelling import words
from estimator.hardware import naming
from estimator.hardware.accelerator import Accelerator, Link, accelerator

FOLDER = naming.NODES


class Node(BaseModel):
    """A system or an instance of a cloud, as one file of nodes/ describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    aliases: list[str]
    provider: str
    accelerator: str
    """Name of the accelerator in the catalogue."""
    gpus: Fact
    joined_by: Literal["interconnect", "pcie"]
    """Which links of the accelerator join those of the node."""
    switched: bool = False
    """Whether a switch gives any two of them the whole bandwidth (NVSwitch)."""
    network: Link | None = None
    """The network to other nodes; its bandwidth is that of the whole node, in GB/s and one direction. None: not known."""
    vcpus: Fact | None = None
    memory: Fact | None = None
    """Memory of the host, GiB."""

    @property
    def facts(self) -> dict[str, Fact]:
        """Every fact by its place in the file."""
        found = {name: fact for name in ("gpus", "vcpus", "memory") if (fact := getattr(self, name))}
        return found | ({"network.bandwidth": self.network.bandwidth} if self.network else {})

    @property
    def link(self) -> Link | None:
        """What joins its accelerators."""
        card = accelerator(self.accelerator)
        return card.interconnect if self.joined_by == "interconnect" else card.pcie


class Links(NamedTuple):
    """What ranks exchange over; None where it is not known, or there is nothing to join."""

    within: Link | None
    """Between accelerators of a node: GB/s of each of them, one direction."""
    between: Link | None
    """Between nodes: GB/s of a whole node, one direction."""
    node: str | None
    """Whose links they are; None: the accelerator's own."""


def node(name: str) -> Node:
    """The node of a name or alias; `UnknownName` if there is none."""
    found = naming.node(naming.with_units(words(name)))
    if found is None:
        raise catalogue.unknown((FOLDER,), name, "node")
    return _read(found)


@cache
def _read(name: str) -> Node:
    path = FOLDER / f"{name}.yaml"
    return validated(Node, catalogue.shipped(path), str(path))


def links(card: Accelerator, gpus: int) -> Links:
    """The links of `gpus` accelerators in a node: those of the node that is usual for them, or without one their own, or the
    host's where bridges join fewer."""
    usual = node(card.usual_node) if card.usual_node else None
    if usual is None:
        own = card.interconnect
        within = own if own and gpus <= (own.peers or gpus) else card.pcie
    else:
        within = usual.link
    return Links(within if gpus > 1 else None, usual.network if usual else None, usual.name if usual else None)
