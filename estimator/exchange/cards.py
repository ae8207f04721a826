"""GPUs by the names of those who lend them: Slurm's header, labels of Kubernetes' nodes, SkyPilot, dstack.

A name of cards of several sizes (`gpu:a100:4`) says how many there are and not which, unless who lends them has one size of that
name alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from estimator.contract.errors import InvalidValue, WillItFitError
from estimator.contract.job import Hardware
from estimator.exchange.found import LeftOut
from estimator.hardware.parse import read_hardware

NOWHERE: Mapping[str, str] = {}
SKYPILOT = {"a100": "a100-40gb", "v100": "v100-16gb", "gh200": "gh200-96gb"}
"""Names that SkyPilot has beside A100-80GB and V100-32GB (its list of accelerators, 2026-11)."""
MACHINE = "node.kubernetes.io/instance-type"
LABELS: dict[str, Mapping[str, str]] = {
    "nvidia.com/gpu.product": {"nvidia-gh200-480gb": "gh200-96gb"},
    "cloud.google.com/gke-accelerator": {
        "nvidia-tesla-a100": "a100-40gb",
        "nvidia-tesla-v100": "v100-16gb",
        "nvidia-h100-mega-80gb": "h100",
    },
}
"""Labels of Kubernetes' nodes that tell the card, with names that only they have: NVIDIA's discovery of features; Google's, whose
A2 has A100 of 40 GB and A3 Mega H100."""
_KIND, _SIZE = re.compile(r"[-_ ]hbm\d\w?$", re.IGNORECASE), re.compile(r"-(\d+)gb$")


class Asked(NamedTuple):
    """GPUs that are asked for, and what of their name is not in that."""

    hardware: Hardware | None
    left_out: tuple[LeftOut, ...] = ()


def meant(name: str, known: Mapping[str, str] = NOWHERE) -> Hardware | None:
    """The card, or the memory of one, that a name means; None where it is not known, or may mean cards of several sizes."""
    name = known.get(name.lower(), _KIND.sub("", name))
    with suppress(WillItFitError):
        found = read_hardware(name).hardware
        if found.memory:
            return Hardware(memory=found.memory)
        size = _SIZE.search(found.gpu or "")
        if found.gpu and (size is None or size[1] in re.findall(r"\d+", name)):
            return Hardware(gpu=found.gpu)
    return None


def unclear(name: str, key: str) -> LeftOut:
    """What is said of a name that means no card, or several."""
    return LeftOut(key=key, why=f"{name[:60]}: is not the name of one card that is known; say which with --on")


def cards(name: str, count: int, nodes: int, key: str, known: Mapping[str, str] = NOWHERE) -> Asked:
    """So many of what a name means. `key`: where the file says it."""
    found = meant(name, known) if name else Hardware()
    left = () if found else (unclear(name, key),)
    return Asked((found or Hardware()).model_copy(update={"gpus": count, "nodes": nodes}), left)


def of_skypilot(resources: Mapping[str, Any], nodes: int) -> Asked:
    """A100-80GB:8, {H100: 8}, or a machine by its name; of several that would do, the first."""
    for several in ("any_of", "ordered"):
        if isinstance(listed := resources.get(several), list) and listed and isinstance(listed[0], Mapping):
            resources = {**resources, **listed[0]}
    given = resources.get("accelerators")
    if isinstance(given, list):
        given = given[0] if given else None
    if isinstance(given, Mapping):
        name, count = next(iter(given.items()), ("", None))
        given = f"{name}:{count}" if count is not None else name
    if not given and (machine := resources.get("instance_type")):
        with suppress(WillItFitError):
            return Asked(read_hardware(str(machine)).hardware.model_copy(update={"nodes": nodes}))
    name, _, count = str(given or "").strip().partition(":")
    if not name:
        return Asked(Hardware(nodes=nodes) if nodes > 1 else None)
    if name.isdecimal():
        name, count = "", name
    return cards(name, number(count or "1", "skypilot resources.accelerators"), nodes, "resources.accelerators", SKYPILOT)


def of_dstack(given: Any, nodes: int) -> Asked:
    """24GB, A100:80GB:8, nvidia:4, or a mapping of `name`, `memory` and `count`; of a range of GPUs only the number."""
    if isinstance(given, Mapping):
        parts = [given.get("name"), given.get("memory"), given.get("count")]
        given = ":".join(str(part[0] if isinstance(part, list) and part else part) for part in parts if part)
    if not given:
        return Asked(Hardware(nodes=nodes) if nodes > 1 else None)
    words = [word.strip() for word in str(given).split(":") if word.strip().lower() not in ("nvidia", "amd", "intel", "google")]
    ranges = [word for word in words if ".." in word]
    counts = [word.partition("..")[0] for word in words if not re.search(r"[a-z]", word, re.IGNORECASE)]
    count = number(counts[0] or "1", "dstack resources.gpu") if counts else 1
    if ranges:
        why = f"{str(given)[:60]}: any of a range; say which with --on"
        return Asked(Hardware(gpus=count, nodes=nodes), (LeftOut(key="resources.gpu", why=why),))
    names = [word.partition(",")[0] for word in words if re.search(r"[a-z]", word, re.IGNORECASE)]
    return cards("-".join(names), count, nodes, "resources.gpu")


def of_node(count: int, pod: Mapping[str, Any]) -> Hardware:
    """A pod's GPUs, and which they are, where it asks for nodes by a label that tells."""
    asked = {**_required(pod), **mapping(pod.get("nodeSelector"))}
    for label, known in LABELS.items():
        if (name := str(asked.get(label) or "")) and (found := meant(name, known)):
            return found.model_copy(update={"gpus": count})
    with suppress(WillItFitError):
        return Hardware(gpu=read_hardware(str(asked.get(MACHINE) or "")).hardware.gpu, gpus=count)
    return Hardware(gpus=count)


def _required(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Labels with the one value that a pod's affinity requires of its node."""
    affinity = mapping(mapping(pod.get("affinity")).get("nodeAffinity"))
    terms = mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution")).get("nodeSelectorTerms")
    found: dict[str, Any] = {}
    for term in terms if isinstance(terms, list) and len(terms) == 1 else []:
        listed = mapping(term).get("matchExpressions")
        for one in map(mapping, listed if isinstance(listed, list) else []):
            values = one.get("values")
            if one.get("operator") == "In" and isinstance(values, list) and len(values) == 1:
                found[str(one.get("key"))] = values[0]
    return found


def number(value: Any, where: str) -> int:
    """A number of GPUs or nodes. Raises `InvalidValue` for what is none."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 6:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 17:
        raise InvalidValue(f"{str(value)[:40]!r} is no number of such a thing", where)
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping, or an empty one in the place of anything else."""
    return value if isinstance(value, Mapping) else {}
