"""Hardware as people write it: '2x24GB', 'rtx-4090', 'two A100s', '2 nodes of 8xA100-80GB', '2xp5.48xlarge', 'TPU v5e-8'.

A phrase is a thing (an accelerator, a node, an amount of memory) with counts before or after it. Counts are taken from both
ends until what is left is a thing that is known; nothing is taken for a thing that it is merely like.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import ValidationError

from estimator.contract.errors import InvalidValue, NotModelled, WillItFitError
from estimator.contract.job import Hardware
from estimator.contract.units import parse_bytes
from estimator.contract.validation import explain
from estimator.facts.spelling import MOST, joined, shown, words
from estimator.hardware import naming
from estimator.hardware.accelerator import accelerator
from estimator.hardware.cpu import beside_ram, read_ram
from estimator.hardware.naming import HOSTS, NOTHING, memory, with_units
from estimator.hardware.node import node

NUMBERS = {"a": 1, "an": 1, "one": 1, "single": 1, "two": 2, "dual": 2, "pair": 2, "three": 3, "triple": 3, "four": 4, "quad": 4}
NUMBERS |= {"five": 5, "six": 6, "seven": 7, "eight": 8, "octa": 8, "ten": 10, "twelve": 12, "sixteen": 16}
JOINING = ("x", "of", "with")
"""Words between a count and what is counted."""
BESIDE = frozenset(
    {"my", "our", "nvlink", "nvlinked", "colab", "kaggle", "runpod", "vast", "vastai", "vast.ai", "coreweave", "modal"}
)
BESIDE |= {"paperspace", "lambda", "gcp", "aws", "azure", "oracle", "oci", "nebius", "desktop"}
"""Words beside a card that do not change which it is: whose it is, who rents it out, how several are joined."""
HERE = ("here", "here:free")
MOST_GPUS = 2**17
EXAMPLES = "write 2x24GB, rtx-4090, 8xH100 or '2 nodes of 8xA100-80GB'"
_BEFORE = re.compile(r"(\d+)[x*](.*)")
_AFTER = re.compile(r"(.*)[x*](\d+)")
_LIST = re.compile(r"[,/+&;|]|\s(?:and|or|plus)\s", re.IGNORECASE)


_CHIP = re.compile(r"m[1-9]")
_REQUESTED = re.compile(r"\b(?:gpu:)?([a-z][\w.\-]*):(\d+)\b", re.IGNORECASE)
"""As schedulers ask for cards: h100:8, gpu:h100:8."""
_NEGATIVE = re.compile(r"\s*[-\u2010-\u2015\u2212]\s*\d")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
"""Commas within a number: 1,024."""


class ReadHardware(NamedTuple):
    """Hardware as it was understood."""

    hardware: Hardware
    said: tuple[str, ...] = ()
    """How, where that is not plain from what was written."""


class _Thing(NamedTuple):
    gpu: str | None = None
    memory: str | None = None
    gpus: int | None = None
    """GPUs of the node, or of the slice of TPUs, that was named; None for a card."""

    @property
    def name(self) -> str:
        return self.gpu or self.memory or ""


@dataclass(slots=True)
class _Phrase:
    """What is left of a phrase, and the counts that were taken from it."""

    pieces: list[str]
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    plain: bool = True
    """Whether all counts are digits before the thing."""

    @property
    def several(self) -> bool:
        return any(count != 1 for count in (*self.before, *self.after, *self.nodes))

    def take(self) -> bool:
        """Take one count from the end or the start; False if there is none."""
        return self._from_end() or self._from_start()

    def _from_end(self) -> bool:
        """x 8, x 4 nodes, each."""
        if self.pieces[-1] == "each":
            self.pieces, self.plain = self.pieces[:-1], False
            return bool(self.pieces)
        *left, first, last = ["", *self.pieces]
        hosts = last in HOSTS
        count = _number(first if hosts else last)
        if not left[1:] or count is None or not (hosts or first == "x") or (hosts and count > 1 and not last.endswith("s")):
            return False
        (self.nodes if hosts else self.after).append(count)
        self.pieces, self.plain = left[1:-1] if left[-1] == "x" else left[1:], False
        return bool(self.pieces)

    def _from_start(self) -> bool:
        """8 x, two, 4 nodes of."""
        first, *left = self.pieces
        count = _number(first)
        if not left or count is None or (left[0] not in (*JOINING, *HOSTS) and _number(left[0]) is not None):
            return False
        left = _after_joining(left)
        hosts = left[0] in HOSTS
        (self.nodes if hosts else self.before).append(count)
        self.pieces, self.plain = _after_joining(left[1:]) if hosts else left, self.plain and first.isdecimal()
        return bool(self.pieces)


def is_here(text: str) -> bool:
    """Whether a phrase means the machine on which it is asked; `here:free` is that less what other processes hold."""
    return text.strip().lower() in HERE


def hardware_of(on: str | Hardware) -> Hardware:
    """Hardware, or what a phrase says."""
    return read_hardware(on).hardware if isinstance(on, str) else on


def read_hardware(text: str) -> ReadHardware:
    """The hardware that a phrase describes, its accelerator by its canonical name.

    Raises `InvalidJob` and `NotModelled` for what no phrase can say, `UnknownName` where nothing is called so.
    """
    found = known_hardware(text)
    if found is None:
        phrase, _ = _read(_pieces_of(text), text)
        raise naming.unknown(" ".join(text.split()), " ".join(phrase.pieces))
    return found


def known_hardware(text: str) -> ReadHardware | None:
    """The same, but None where nothing is called so: names that are like it are not looked for."""
    if not text.strip():
        raise InvalidValue(f"is empty; {EXAMPLES}", "hardware")
    if is_here(text):
        raise InvalidValue(f"'here' is read by the command line's --on and by estimator.here(); {EXAMPLES}", "hardware")
    if len(text) > MOST:
        raise InvalidValue(f"has {len(text):,} characters; {EXAMPLES}", "hardware")
    if _NEGATIVE.match(text):
        raise InvalidValue(f"{shown(text)} begins with a negative number; {EXAMPLES}", "hardware")
    pieces = _pieces_of(text)
    phrase, thing = _read(pieces, text)
    if thing is None and (less := [piece for piece in pieces if piece not in _besides(pieces)]) and less != pieces:
        shorter, thing = _read(less, text)
        phrase = shorter if thing else phrase
        phrase.plain = False
    if thing is None:
        if beside := _with_ram(text):
            return beside
        _refuse_unlike(text)
        if machine := read_ram(text, pieces):
            return ReadHardware(machine, (f"{' '.join(text.split())} read as a machine without a GPU, {machine.ram} of RAM",))
        if len(phrase.pieces) == 1 and phrase.pieces[0].isdecimal():
            raise InvalidValue(f"{shown(text)} is a number: for a card of so much memory write {phrase.pieces[0]}GB", "hardware")
        return None
    hardware = _hardware(thing, phrase, text)
    return ReadHardware(hardware, tuple(_said(thing, phrase, hardware, text)))


def _pieces_of(text: str) -> list[str]:
    """A phrase in words, with counts apart."""
    return _pieces(words(_THOUSANDS.sub("", _REQUESTED.sub(r"\2x\1", text))))


def _besides(pieces: list[str]) -> frozenset[str]:
    """Words that may stand in this phrase and say nothing; `with` before them, and before the memory of a Mac."""
    apple = any(piece in naming.MACS or _CHIP.fullmatch(piece) for piece in pieces)
    return BESIDE | {"with"} if apple or not BESIDE.isdisjoint(pieces) else BESIDE


def _with_ram(text: str) -> ReadHardware | None:
    """Accelerators and the RAM of their node; None where a phrase does not say both."""
    found = beside_ram(" ".join(text.split()))
    try:
        read = known_hardware(found[0]) if found else None
    except WillItFitError:
        read = None
    if found is None or read is None or read.hardware.without_gpu or read.hardware.ram:
        return None
    try:
        hardware = Hardware.model_validate({**read.hardware.model_dump(), "ram": found[1]})
    except ValidationError as error:
        raise InvalidValue(explain(error), "hardware") from None
    return ReadHardware(hardware, (f"{' '.join(text.split())} read as {found[0]} in a node with {found[1]} of RAM",))


def _read(pieces: list[str], text: str) -> tuple[_Phrase, _Thing | None]:
    """A phrase with its counts taken off, and the thing that is left, if it is one."""
    phrase = _Phrase(_after_joining(pieces))
    thing = _named(phrase, text)
    while thing is None and phrase.pieces and phrase.take():
        thing = _named(phrase, text)
    return phrase, thing


def _pieces(parts: list[str]) -> list[str]:
    """Words, with counts apart from what they are written together with: 8xh100 is 8, x and h100."""
    found: list[str] = []
    for word in with_units(parts):
        part = "x" if word == "*" else word
        while (match := _BEFORE.fullmatch(part)) and (_thing([match[2]]) or not _thing([part])):
            found += [match[1], "x"]
            part = match[2]
        if (match := _AFTER.fullmatch(part)) and (not match[1] or _thing([match[1]])) and not _thing([part]):
            found += [match[1], "x", match[2]]
        else:
            found.append(part)
    return with_units([piece for piece in found if piece])


def _number(piece: str) -> int | None:
    """The count that a piece is: not where it is an accelerator's name, as 4090 is."""
    if piece.isdecimal() and len(piece) < 10:
        return None if naming.card([piece]) else int(piece)
    return NUMBERS.get(piece)


def _after_joining(pieces: list[str]) -> list[str]:
    """Pieces without the words at their start that join them to a count."""
    start = 0
    while start < len(pieces) - 1 and pieces[start] in JOINING:
        start += 1
    return pieces[start:]


def _thing(parts: list[str]) -> _Thing | None:
    """What words name, without counts."""
    if parts[1:2] == ["x"]:
        return None  # a count: no name begins so
    told = [part for part in parts if part not in NOTHING]
    if len(told) == 1 and (amount := memory(told[0])):
        return _Thing(memory=amount)
    if told and (card := naming.card(told)):
        return _Thing(gpu=card)
    if parts and not parts[0].isdecimal() and (name := naming.node(parts)):
        return _Thing(gpu=node(name).accelerator, gpus=int(node(name).gpus.value))
    return _slice(parts)


def _slice(parts: list[str]) -> _Thing | None:
    """A slice of TPUs, whose name ends in how many chips it has, or cores of chips: v5e-8, v4-8."""
    name = naming.card(parts[:-1]) if len(parts) > 1 and parts[-1].isdecimal() else None
    per_chip = accelerator(name).slice_cores if name else None
    if name is None or per_chip is None:
        return None
    chips, rest = divmod(int(parts[-1]), int(per_chip.value))
    return _Thing(gpu=name, gpus=chips) if chips and not rest else None


def _named(phrase: _Phrase, text: str) -> _Thing | None:
    """The thing that is left of a phrase, in the plural as well, where it is counted."""
    thing, last = _thing(phrase.pieces), phrase.pieces[-1] if phrase.pieces else ""
    one = _thing([*phrase.pieces[:-1], last[:-1]]) if last.endswith("s") and len(last) > 2 else None
    if one is None or one == thing or (thing and not phrase.several):
        return thing
    if thing is None and phrase.several:
        return one
    if thing is None:
        raise InvalidValue(f"{shown(text)} does not say how many: write 2x{one.name}", "hardware")
    written = re.search(re.escape(last), text, re.IGNORECASE)
    if written and (written[0][-1] == "S" or (written[0] == thing.name and "x" in text)):
        return thing
    raise InvalidValue(
        f"{shown(text)} may be several {one.name} or several {thing.name}: write 2x{one.name} or 2x{last.upper()}", "hardware"
    )


def _refuse_unlike(text: str) -> None:
    """Cards that are not alike are refused in so many words."""
    named: list[ReadHardware] = []
    parts = _LIST.split(text)
    for part in parts if len(parts) > 1 else ():
        try:
            one = read_hardware(part)
        except WillItFitError:
            continue
        named += [] if one.hardware.ram else [one]
    if len(named) < 2:
        return
    alike = {_size(one.hardware): one.hardware.gpu or one.hardware.memory for one in named}
    smallest, count = alike[min(alike)], sum(one.hardware.gpus * one.hardware.nodes for one in named)
    how = (
        f"write {count}x{smallest}"
        if len(alike) == 1
        else f"ask for as many of the smallest, {count}x{smallest}, or for each kind alone"
    )
    raise NotModelled(f"{shown(text)} is a list; only cards that are alike share a job: {how}", "hardware")


def _size(hardware: Hardware) -> tuple[int, str]:
    """The key that tells cards apart and sorts them by memory in bytes, smallest first."""
    if hardware.gpu:
        return accelerator(hardware.gpu).memory_bytes, hardware.gpu
    return parse_bytes(hardware.memory or ""), ""


def _hardware(thing: _Thing, phrase: _Phrase, text: str) -> Hardware:
    counts = phrase.before + phrase.after
    if (phrase.before and phrase.after) or len(phrase.nodes) > 1 or len(counts) + len(phrase.nodes) > 2:
        raise InvalidValue(f"{shown(text)} counts too much: write '4 nodes of 8xH100'", "hardware")
    nodes, gpus = (*phrase.nodes, *(1,) * (2 - len(phrase.nodes) - len(counts)), *counts)[:2]
    if thing.gpus:
        nodes, gpus = nodes * gpus, thing.gpus
    elif not phrase.nodes and len(counts) == 1 and (each := _per_node(thing)) and gpus > each and gpus % each == 0:
        nodes, gpus = gpus // each, each
    for count, what in ((nodes, "nodes"), (gpus, "GPUs")):
        if not 1 <= count <= MOST_GPUS:
            raise InvalidValue(f"{count} {what} in {shown(text)}: give between 1 and {MOST_GPUS}", "hardware")
    try:
        return Hardware(gpu=thing.gpu, memory=thing.memory, gpus=gpus, nodes=nodes)
    except ValidationError as error:
        raise InvalidValue(explain(error), "hardware") from None


def _said(thing: _Thing, phrase: _Phrase, hardware: Hardware, text: str) -> list[str]:
    """How a phrase was understood, where it did not say so itself."""
    count = f"{hardware.gpus} x {thing.name}" if hardware.gpus > 1 else thing.name
    whole = f"{hardware.nodes} nodes of {count}" if hardware.nodes > 1 else count
    found = []
    if not phrase.plain or joined(phrase.pieces) != joined(words(thing.name)):
        found.append(f"{' '.join(text.split())} read as {whole}")
    each = _per_node(thing)
    if each and hardware.nodes == 1 and hardware.gpus > each:
        found.append(f"{whole} taken to be in one node; nodes of {each} are written 2x{each}x{thing.gpu}")
    elif hardware.nodes > 1 and not found and not phrase.nodes and len(phrase.before + phrase.after) == 1 and not thing.gpus:
        found.append(f"{' '.join(text.split())} read as {whole}, as they are usually built")
    return found


def _per_node(thing: _Thing) -> int | None:
    """Cards that are usually in one node; None where that is not known, or a node was named."""
    usual = accelerator(thing.gpu).usual_node if thing.gpu and not thing.gpus else None
    return int(node(usual).gpus.value) if usual else None
