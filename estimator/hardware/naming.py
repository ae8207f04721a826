"""Which accelerator or node some words name: a maker may be left out, and an amount of memory anywhere tells variants apart."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from estimator.contract.errors import UnknownHardware, UnknownName
from estimator.facts import catalogue
from estimator.facts.spelling import joined, shown, words

CARDS = Path(__file__).parent / "accelerators"
NODES = Path(__file__).parent / "nodes"
SMALL = frozenset({"iphone", "ipad", "android", "phone", "tablet", "smartphone", "galaxy", "pixel", "snapdragon"})
"""Phones, tablets and their chips."""
MAKERS = {
    "nvidia": ("nvidia",),
    "geforce": ("nvidia",),
    "tesla": ("nvidia",),
    "amd": ("amd",),
    "instinct": ("amd",),
    "radeon": ("amd",),
    "intel": ("intel",),
    "huawei": ("huawei",),
    "habana": ("intel",),
    "apple": ("apple",),
    "macbook": ("apple",),
    "mac": ("apple",),
    "imac": ("apple",),
    "google": ("google", "gcp"),
    "tpu": ("google",),
    "gcp": ("gcp",),
    "aws": ("aws",),
    "amazon": ("aws",),
    "azure": ("azure",),
    "oracle": ("oci",),
    "oci": ("oci",),
    "lambda": ("lambda",),
    "nebius": ("nebius",),
}
"""Words that may stand before any name of these vendors or providers, or be left out of it."""
MACS: dict[str, dict[str, tuple[str, ...]]] = {
    "macbook": {"pro": ("", "pro", "max"), "air": ("",), "": ("", "pro", "max")},
    "mac": {"studio": ("max", "ultra"), "mini": ("", "pro"), "pro": ("ultra",), "": ("", "pro", "max", "ultra")},
    "imac": {"pro": ("",), "": ("",)},
}
"""Apple's computers: what may follow a name and is no part of its chip's, and the kinds of chips that are in it."""
HOSTS = frozenset({"node", "nodes", "machine", "machines", "server", "servers", "host", "hosts", "instance", "instances"})
"""Words for a node."""
NOTHING = frozenset(
    {"gpu", "gpus", "card", "cards", "accelerator", "accelerators", "chip", "chips", "vram", "memory", "graphics", "of"}
)
"""Words that say nothing more next to a name or an amount of memory."""
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)g(i?)b?")
_CHIP = re.compile(r"m(\d+)(?:-(pro|max|ultra))?-(\d+gb)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_UNITS = {"g": "gb", "gb": "gb", "gi": "gib", "gib": "gib", "gigabyte": "gb", "gigabytes": "gb", "gig": "gb", "gigs": "gb"}


def with_units(parts: list[str]) -> list[str]:
    """Words with numbers and the units of memory after them as one: 24 gb is 24gb."""
    found: list[str] = []
    for part in parts:
        if part in _UNITS and found and _NUMBER.fullmatch(found[-1]):
            found[-1] += _UNITS[part]
        else:
            found.append(part)
    return found


def memory(part: str) -> str | None:
    """An amount of memory as a job says it, 24GB or 22.5GiB, if a word is one."""
    match = _MEMORY.fullmatch(part)
    return f"{match[1]}{'GiB' if match[2] else 'GB'}" if match else None


def _alike(parts: list[str]) -> list[str]:
    """Words with amounts of memory written alike: 144g is 144gb."""
    return [amount.lower() if (amount := memory(part)) else part for part in parts]


def card(parts: list[str]) -> str | None:
    """The canonical name of the accelerator that words name, if they name one.

    Raises `UnknownName` where it may be several, or there is none of such a memory.
    """
    parts = _alike([part for part in parts if part not in NOTHING])
    if catalogue.has(CARDS, written := "-".join(parts)):
        return written
    bare = _bare(parts)
    said, rest = [part for part in bare if memory(part)], [part for part in bare if not memory(part)]
    if not rest and len(said) == 1 and parts[0] in MACS:
        return _mac(parts, said[0])
    if not rest or len(said) > 1:
        return None
    keys = _keys(CARDS)
    found = keys.get(joined(bare)) or keys.get(joined([*rest, *said]))
    if found is None and said and (one := keys.get(joined(rest))):
        if memory(said[0]) not in sold(one):
            raise UnknownHardware(_without_such(one, said[0]))
        found = one
    if found is None and (among := _families().get(joined(rest))):
        lacking = f" of {memory(said[0])}" if said else ", of which there are several: say how much memory"
        raise UnknownHardware(f"no gpu is called {' '.join(rest)!r}{lacking}. Did you mean {' or '.join(sorted(among))}?")
    return found if found and _made_by(parts, CARDS / f"{found}.yaml") else None


def _mac(parts: list[str], amount: str) -> str | None:
    """The newest chip of one of Apple's computers with so much memory, where the chip is not named; None where none has it."""
    found = {int(chip[1]): chip[0] for chip in _chips_of(parts) if chip[3] == amount}
    return found[max(found)] if found else None


def _chips_of(parts: list[str]) -> list[re.Match[str]]:
    """The chips, each with an amount of memory, of the kinds that are in one of Apple's computers."""
    usual = MACS[parts[0]][""]
    kinds = MACS[parts[0]].get(parts[1], usual) if len(parts) > 1 else usual
    chips = [_CHIP.fullmatch(name) for name in catalogue.names(CARDS)]
    return [chip for chip in chips if chip and (chip[2] or "") in kinds]


def _without_memory(parts: list[str]) -> str:
    """What to write of one of Apple's computers, where neither its memory nor its chip is said."""
    name, amounts = " ".join(parts), sorted({int(chip[3].removesuffix("gb")) for chip in _chips_of(parts)})
    listed = f"{', '.join(map(str, amounts[:-1]))} or {amounts[-1]} GB"
    newest = f"write {name} {amounts[-1]}gb, for the newest chip with so much, or name the chip"
    return f"several are called {name!r}, with {listed} of memory: {newest}"


def node(parts: list[str]) -> str | None:
    """The canonical name of the node that words name, if they name one."""
    if catalogue.has(NODES, written := "-".join(parts)):
        return written
    keys = _keys(NODES)
    found = keys.get(joined(parts)) or keys.get(joined([part for part in _bare(parts) if part not in HOSTS]))
    return found if found and _made_by(parts, NODES / f"{found}.yaml") else None


def unknown(text: str, like: str = "") -> UnknownName:
    """The error that neither an accelerator nor a node has this name, with the nearest names; of one of Apple's computers with
    the amounts of memory that there are, of what only llama.cpp's kernels for a CPU are known for how to ask about those."""
    parts = [part for part in words(like or text) if part not in NOTHING]
    if parts and parts[0] in MACS and parts[1:] in ([], *([kind] for kind in MACS[parts[0]])):
        return UnknownHardware(_without_memory(parts))
    if not SMALL.isdisjoint(parts):
        how = "for llama.cpp on its CPU write how much RAM it has, '8GB RAM'"
        return UnknownHardware(f"no gpu is called {shown(text)}: phones and tablets are not known here; {how}")
    return catalogue.unknown((CARDS, NODES), text, "gpu", like)


@cache
def _keys(directory: Path) -> dict[str, str]:
    """Canonical names by every name, folded, without makers."""
    found: dict[str, str] = {}
    for entry in catalogue.entries(directory):
        whole = _alike(with_units(words(entry.name)))
        for parts in (whole, _bare(whole)):
            found.setdefault(joined(parts), entry.path.stem)
    found.pop("", None)
    return found


@cache
def _families() -> dict[str, set[str]]:
    """Canonical names of accelerators by what is left of them without the memory."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in catalogue.names(CARDS):
        found[_family(name)].add(name)
    return found


def _family(name: str) -> str:
    return joined([part for part in _bare(words(name)) if not memory(part)])


def _bare(parts: list[str]) -> list[str]:
    """Words without makers, and without those of a computer that a chip is in."""
    before = ["", *parts]
    return [part for i, part in enumerate(parts) if part not in MAKERS and part not in MACS.get(before[i], ())]


def _made_by(parts: list[str], path: Path) -> bool:
    """Whether every maker among words is the one of a file."""
    makers = [MAKERS[part] for part in parts if part in MAKERS]
    content = catalogue.shipped(path) if makers else {}
    return all(content.get("provider", content.get("vendor")) in maker for maker in makers)


def sold(name: str) -> list[str]:
    """The amounts of memory that an accelerator is sold with: as its names say, else as nvidia-smi's figure rounds."""
    content = catalogue.shipped(CARDS / f"{name}.yaml")
    aliases = [word for alias in (name, *content["aliases"]) for word in with_units(words(str(alias)))]
    return [*filter(None, map(memory, aliases)), f"{round(content['framebuffer']['value'] / 1024)}GB"]


def _without_such(name: str, said: str) -> str:
    """The sentence that an accelerator is not sold with some amount of memory, and with which it is."""
    family, amount = sorted(_families()[_family(name)]), memory(said)
    other = (
        f"Did you mean {' or '.join(family)}?" if len(family) > 1 else f"Write {name}, or {amount} for any card of that memory."
    )
    return f"no {name} has {amount}, but {sold(name)[0]}. {other}"
