"""How long ranks exchange: what a tape communicates, on the links between the GPUs of a group.

Ranks are placed as Megatron-Core places them: those of a tensor-parallel group next to each other, then context, data and
pipeline; experts over the ranks of the first three (core/parallel_state.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from estimator.parallel.topology import Topology
from estimator.tape.tape import Traffic
from estimator.timing.curves import collective_seconds, transfer_seconds
from estimator.timing.measured import Curves, Kind


class Links(NamedTuple):
    """GPUs of a node, and GB/s of one GPU in one direction: to the others of its node, and to other nodes."""

    gpus: int
    link: float
    network: float


@dataclass(frozen=True, slots=True)
class Wires:
    """Times exchanges. `curves`: None where nothing was measured; `replicas`: groups that hold the same shards, of hsdp."""

    curves: Curves | None
    links: Links
    place: Topology
    replicas: int = 1

    def seconds(self, one: Traffic) -> float:
        """Seconds of one exchange."""
        if one.operation == "receive":
            _, nodes = self.span(one.group, one.ranks)
            return transfer_seconds(one.nbytes, self.links.link if nodes == 1 else self.links.network)
        return self.collective(cast(Kind, one.operation), one.nbytes, one.group, one.ranks)

    def collective(self, kind: Kind, nbytes: int, group: str, ranks: int) -> float:
        """Seconds of one of NCCL's collectives among so many ranks of a group."""
        in_node, nodes = self.span(group, ranks)
        return collective_seconds(self.curves, kind, nbytes, in_node, nodes, self.links.link, self.links.network)

    def span(self, group: str, ranks: int) -> tuple[int, int]:
        """How many of a group's ranks are in one node, and in how many nodes they are."""
        place = self.place
        strides = {
            "context": place.tensor,
            "data": place.tensor,
            "pipeline": place.gpus // place.pipeline,
            "expert": place.expert_tensor,
            "expert_data": place.expert_tensor * place.expert,
            "replicas": place.data // self.replicas,
        }
        in_node = max(1, min(ranks, self.links.gpus // strides.get(group, 1)))
        return in_node, -(-ranks // in_node)


@dataclass(slots=True)
class Exchanged:
    """Seconds of one pass of a phase, by operation and group; how often each ran."""

    seconds: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    def longest(self, hidden: frozenset[str]) -> float:
        """One exchange of those that are hidden: what nothing is left to hide behind."""
        return max((self.seconds[kind] / self.counts[kind] for kind in self.seconds if kind[1] in hidden), default=0.0)


def exchanged(traffic: Iterable[tuple[Traffic, int]], wires: Wires, phase: str, passes: int) -> Exchanged:
    """All exchanges of a phase, with how often they are, in one of the `passes` that it stands for."""
    found = Exchanged()
    for one, count in traffic:
        if one.phase == phase and one.ranks > 1:
            kind, times = (one.operation, one.group), count / passes
            found.seconds[kind] += wires.seconds(one) * times
            found.counts[kind] += times
    return found
