"""This machine's accelerators, as its own tools name them: nvidia-smi, amd-smi or rocm-smi, macOS; and the memory of its host.

Formats: nvidia-smi --help-query-gpu; amd-smi's and rocm-smi's --json; sysctl(8) and system_profiler(8) of macOS; proc(5),
/proc/meminfo. A tool that hangs is given up.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimator.contract.errors import UnknownHardware, WillItFitError
from estimator.contract.job import Hardware
from estimator.contract.units import GIB, KIB, MIB, gib
from estimator.hardware.accelerator import accelerator
from estimator.hardware.parse import read_hardware

SECONDS = 10.0
"""After so long a tool is given up: one that answers does in one or two."""
NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits")
AMD = ("amd-smi", "static", "--asic", "--vram", "--json")
AMD_USED = ("amd-smi", "metric", "--mem-usage", "--json")
ROCM = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
APPLE = (("sysctl", "-n", "hw.memsize"), ("sysctl", "-n", "machdep.cpu.brand_string"))
MEMINFO = Path("/proc/meminfo")
Ask = Callable[[Sequence[str]], str | None]
"""What a command prints; None where there is no such command, or it does not answer."""


@dataclass(frozen=True, slots=True)
class Found:
    """One accelerator: what its tool calls it, its memory, and what processes hold of that (None: not said)."""

    title: str
    memory_bytes: int | None
    used_bytes: int | None = None

    @property
    def name(self) -> str | None:
        """Its name in the catalogue; None where it is not in it, or several are called so."""
        sold = f" {round(self.memory_bytes / GIB)}GB" if self.memory_bytes else ""
        for text in (self.title, f"{self.title}{sold}"):
            with suppress(WillItFitError):
                return accelerator(text).name
        return None


@dataclass(frozen=True, slots=True)
class Here:
    """This machine: its accelerators that are alike and have most memory together, and what is to be said of them."""

    hardware: Hardware
    in_use_bytes: int | None
    """What other processes hold of the accelerator of which they hold most; None where that is not known."""
    host_bytes: int | None
    """Memory of the host."""
    said: tuple[str, ...]

    @property
    def free(self) -> Hardware:
        """The hardware less what other processes hold."""
        return self.hardware.model_copy(update={"in_use": self.in_use_bytes or None})


def here(ask: Ask | None = None, meminfo: Path = MEMINFO) -> Here:
    """This machine. `ask`: what commands print. Raises `UnknownHardware`, with what was looked for, where nothing was found."""
    ask = ask or asked
    host = _host(meminfo)
    for what, read in _READERS:
        if cards := list(read(ask)):
            return _here(what, cards, host)
    looked = "nvidia-smi, amd-smi, rocm-smi and macOS's sysctl"
    memory = (
        ""
        if host is None
        else f" It has {gib(host)} of memory: ask about a card, or llama.cpp in that, --on 'cpu {host // GIB}GiB RAM'."
    )
    raise UnknownHardware(
        f"no accelerator was found on this machine: {looked} are not there, or answer nothing.{memory}", "--on here"
    )


def asked(command: Sequence[str]) -> str | None:
    """What a command of this machine prints, if it ends well within `SECONDS`."""
    if shutil.which(command[0]) is None:
        return None
    try:
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:
        return None
    with process:
        try:
            out, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return None
    return out.decode("utf-8", "replace") if process.returncode == 0 else None


def _here(what: str, cards: list[Found], host: int | None) -> Here:
    alike: dict[tuple[str | None, int | None], list[Found]] = {}
    for card in cards:
        alike.setdefault((card.name, None if card.name else card.memory_bytes), []).append(card)
    (name, _), chosen = max(alike.items(), key=lambda group: sum(_size(card) for card in group[1]))
    first, count = chosen[0], len(chosen)
    if name is None and first.memory_bytes is None:
        raise UnknownHardware(
            f"{what} calls the accelerator {first.title!r}, which is in no catalogue, and does not say its memory"
        )
    memory = None if name else f"{(first.memory_bytes or 0) / GIB:.3f}GiB"
    text = f"{count} x {name or f'{first.title} ({gib(first.memory_bytes or 0)}), a card that is not in the catalogue'}"
    said = [f"this machine, by {what}: {text}"]
    if left := len(cards) - count:
        said.append(f"left out: {left} other accelerators, since all that are used must be alike")
    known = [card.used_bytes for card in chosen if card.used_bytes is not None]
    used = max(known) if known else None
    if used is None:
        said.append("what other processes hold of it is not known")
    elif used:
        each = "" if count == 1 else " of the one of which they hold most"
        said.append(f"other processes hold {gib(used)}{each}: here:free takes it off")
    return Here(Hardware(gpu=name, memory=memory, gpus=count), used, host, tuple(said))


def _size(card: Found) -> int:
    if card.memory_bytes is not None:
        return card.memory_bytes
    return accelerator(card.name).memory_bytes if card.name else 0


def _nvidia(ask: Ask) -> Iterator[Found]:
    """Lines of name, total and used memory in MiB; [N/A] where memory is shared with the host."""
    for row in csv.reader((ask(NVIDIA) or "").splitlines(), skipinitialspace=True):
        if len(row) == 3 and row[0].strip():
            yield Found(row[0].strip(), _mebibytes(row[1]), _mebibytes(row[2]))


def _amd(ask: Ask) -> Iterator[Found]:
    """amd-smi's lists, or objects with one in them; sizes are in MB that are MiB."""
    used = {one.get("gpu"): _sized(one, "mem_usage", "used_vram") for one in _listed(ask(AMD_USED))}
    for one in _listed(ask(AMD)):
        title = one.get("asic", {}).get("market_name") if isinstance(one.get("asic"), dict) else None
        if title:
            yield Found(str(title), _sized(one, "vram", "size"), used.get(one.get("gpu")))


def _listed(text: str | None) -> list[dict[str, Any]]:
    content = _json(text)
    if isinstance(content, dict):
        content = next((value for value in content.values() if isinstance(value, list)), [])
    return [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []


def _sized(one: dict[str, Any], part: str, name: str) -> int | None:
    inner = one.get(part)
    size = inner.get(name) if isinstance(inner, dict) else None
    return _mebibytes(str(size.get("value") if isinstance(size, dict) else size))


def _rocm(ask: Ask) -> Iterator[Found]:
    """rocm-smi's object of cards, whose sizes are bytes as text; names of its keys differ in their capitals between releases."""
    content = _json(ask(ROCM))
    for name, one in content.items() if isinstance(content, dict) else ():
        if name.startswith("card") and isinstance(one, dict):
            said = {str(key).lower(): str(value) for key, value in one.items()}
            total, used = (said.get(f"vram total {key}memory (b)", "") for key in ("", "used "))
            title = said.get("card series") or said.get("card model") or name
            yield Found(title, int(total) if total.isdecimal() else None, int(used) if used.isdecimal() else None)


def _apple(ask: Ask) -> Iterator[Found]:
    """macOS: the chip's name, and the memory that its GPU shares with all else, in bytes."""
    memory, chip = (ask(command) for command in APPLE)
    if memory and chip and memory.strip().isdecimal() and chip.startswith("Apple "):
        size = int(memory)
        name = read_hardware(f"{chip.strip()} {round(size / GIB)}GB").hardware.gpu
        yield Found(name or chip.strip(), size)


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def _mebibytes(text: str) -> int | None:
    return int(text) * MIB if text.strip().isdecimal() else None


def _host(path: Path) -> int | None:
    """MemTotal of /proc/meminfo, which is in kB that are KiB."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    found = next((line.split()[1] for line in lines if line.startswith("MemTotal:") and len(line.split()) > 1), "")
    return int(found) * KIB if found.isdecimal() else None


_READERS: tuple[tuple[str, Callable[[Ask], Iterator[Found]]], ...] = (
    ("nvidia-smi", _nvidia),
    ("amd-smi", _amd),
    ("rocm-smi", _rocm),
    ("macOS", _apple),
)
"""What is asked, in this order."""
