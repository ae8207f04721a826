"""How near answers come to figures that were published beside a framework's configuration: `python -m tests.exchange.published
FILE [WORD]`.

A row of the file has `framework`, `config` (its keys), `gpus`, `kind` and `measured: {value, unit}`. Which rows are no
measurement of their configuration is in tests/data/published_files.yaml. A row whose sequences are as long as its data, which
are not published with it, is answered at the longest that its file allows: that is a bound of the figure, no prediction, and
counted apart, too.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from estimator import Answer, estimate
from estimator.contract.errors import WillItFitError
from estimator.contract.job import Hardware
from estimator.contract.units import gib
from estimator.exchange import READ, Surroundings, read
from estimator.exchange.configuration import framework
from estimator.hardware.parse import hardware_of
from tests.jobs import content

KNOWN = Path(__file__).parent.parent / "data" / "published_files.yaml"
LENGTHS = "its sequences are as long as its data, which are not published with it"
OTHER = ("KV cache", "while training")
"""Parts of the kinds of figures that are not of a process's highest memory."""
BYTES = {"GB": 10**9, "GiB": 2**30, "MiB": 2**20}


def text(row: dict[str, Any]) -> tuple[str, str | None]:
    """The row's configuration as a file or a command, and whose it is."""
    config = dict(row["config"])
    named = str(row["framework"]).partition("+")[0]
    whose = named if named in READ else None
    environment = " ".join(f"{key}={value}" for key, value in (config.pop("env", None) or {}).items())
    if isinstance(config.get("model"), str) and whose == "torchtune":
        builder = {key: config.pop(key) for key in list(config) if key.startswith(("lora_", "apply_lora"))}
        config["model"] = {"_component_": config["model"], **builder}
    if (command := config.pop("command", None)) is not None:
        options = " ".join(f"--{key} {_word(value)}" for key, value in config.items())
        return f"{environment} {command} {options}", None
    return json.dumps(config), whose


def release(row: dict[str, Any], whose: str | None) -> str | None:
    """The release that a row was measured with: the day of its figure where that is known, else what number or day it says."""
    day = next((one["day"] for one in known()["days"] if row["id"] in one["rows"]), None)
    said = day or str(row.get("version") or "")
    dated = re.fullmatch(r"\d{4}(-\d\d){1,2}", said) is not None
    numbered = whose is not None and framework(whose).releases and re.fullmatch(r"\d+(\.\d+)+(\.?dev\d+)?", said)
    return said if dated or numbered else None


def _word(value: Any) -> str:
    """A value as a command has it; a list is one that its blanks have parted."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def predicted(answer: Answer, kind: str, beside: int) -> int:
    """The answer's bytes of the kind that was measured. `beside`: what the reader counts as memory that others hold, other models
    of the same process."""
    memory = answer.memory
    if "max_memory_allocated" in kind:
        return (memory.peak_bytes or 0) + beside
    if "nvidia-smi" in kind:
        return (memory.total_bytes or 0) + beside
    return (memory.reserved_bytes or memory.peak_bytes or 0) + beside


@dataclass(frozen=True)
class Compared:
    """What became of a row."""

    ratio: float | None
    """The prediction over the measurement; None where there is none."""
    said: str
    """Why there is none, or which settings were left out."""
    apart: str = ""
    """Why the two cannot be compared; empty where they can."""


@cache
def known() -> dict[str, list[dict[str, Any]]]:
    """What is known of single rows, by kind."""
    found: dict[str, list[dict[str, Any]]] = content(KNOWN)
    return found


def told(kind: str, row: str) -> dict[str, Any] | None:
    """The first entry of a kind that is about a row."""
    return next((one for one in known()[kind] if any(fnmatch(row, pattern) for pattern in one["rows"])), None)


def answered(row: dict[str, Any], card: str | None = None) -> tuple[Compared, Answer | None]:
    """The answer to a row, beside its figure; None where there is none. `card`: what its GPUs are, where that is asked."""
    name = row["id"]
    apart = (told("apart", name) or {}).get("why", "")
    if (corrected := told("settings", name)) is not None:
        row = {**row, "config": {**row["config"], **corrected["settings"]}}
    given, whose = text(row)
    hardware = Hardware(gpus=row["gpus"]) if row.get("gpus") else None
    if card is not None:
        hardware = hardware_of(f"{row['gpus']}x{card}")
    try:
        around = Surroundings(
            name=row.get("config_file") or name, hardware=hardware, allow_files=False, release=release(row, whose)
        )
        found = read(given, whose, around=around)
        answer = estimate(found.job, allow_files=False)
    except WillItFitError as error:
        return Compared(None, f"{type(error).__name__}: {error}", apart), None
    if not apart and any(one.key == "lengths" for one in found.assumed) and told("lengths", name) is None:
        apart = LENGTHS
    said = "; ".join(one.key for one in found.left_out)
    beside = 0 if hardware is not None and hardware.in_use else int((found.job.get("hardware") or {}).get("in_use") or 0)
    if card is not None:
        return Compared(None, said, apart), answer
    value = predicted(answer, str(row["kind"]), beside)
    measured = row["measured"]["value"] * BYTES[row["measured"]["unit"]]
    return Compared(value / measured, said, apart), answer


def nearness(ratios: list[float]) -> str:
    """How near some answers are."""
    found = [abs(ratio - 1) for ratio in ratios]
    near = sum(error <= 0.15 for error in found)
    return f"median error {median(found):.1%}, {near} of {len(found)} within 15 %" if found else "none"


def is_verdict(row: dict[str, Any]) -> bool:
    """Whether a row says that it ran or did not, on cards of its `gpu` or of the size in its `measured`."""
    return any(part in str(row["kind"]) for part in ("verdict", "out of memory", "card it runs on"))


def judged(row: dict[str, Any]) -> tuple[bool, bool | None, Compared]:
    """Whether a row's run ran, whether the answer says so, and what else there is to say."""
    size, kind = row["measured"], str(row["kind"])
    ran = "verdict: ran" in kind or "card it runs on" in kind
    card = f"{size['value']:g}{size['unit']}" if size.get("unit") else row["gpu"]
    one, answer = answered({**row, "gpus": row.get("gpus") or 1}, card)
    apart = (told("verdicts", row["id"]) or {}).get("why") or one.apart
    if answer is None:
        return ran, None, Compared(None, one.said, apart)
    if apart == LENGTHS and not (ran and answer.fits is False):  # what fits at the longest fits; what does not fit there may
        apart = ""
    return ran, answer.fits, Compared(None, f"{answer.verdict}, {gib(answer.memory.total_bytes or 0)}", apart)


def verdicts(rows: list[dict[str, Any]]) -> None:
    """Print a line for each verdict, and how many are right."""
    counts: Counter[str] = Counter()
    for row in rows:
        ran, fits, one = judged(row)
        right = "not answered" if fits is None else "right" if fits == ran else "wrong"
        counts[f"{right}, apart" if one.apart else right] += 1
        print(f"{row['id'][:58]:58} {'ran' if ran else 'did not':8} {right:12} {one.said[:120]} | {one.apart[:120]}")
    print(f"verdicts: {dict(counts)}")


def main(path: Path, word: str = "") -> None:
    """Print a line for each row, and how near they are by framework."""
    rows = content(path)["rows"]
    rows = [row for row in rows if word in row["id"]]
    verdicts([row for row in rows if is_verdict(row)])
    rows = [row for row in rows if row["tier"] in "AB" and word in row["id"] and row["measured"].get("unit") in BYTES]
    rows = [row for row in rows if not any(other in str(row["kind"]) for other in OTHER)]
    found: dict[str, list[Compared]] = defaultdict(list)
    for row in rows:
        one, _ = answered(row)
        shown = "-" if one.ratio is None else f"{one.ratio:.2f}"
        print(f"{row['id'][:58]:58} {row['measured']['value']:8} {shown:>5} {'apart' if one.apart else '':5} {one.said[:150]}")
        found[row["framework"]].append(one)
    for whose, ones in sorted(found.items()):
        some = [one for one in ones if one.ratio is not None]
        print(f"{whose:16} {nearness([one.ratio for one in some if one.ratio is not None and not one.apart])}")
        print(f"    {len(some)} of {len(ones)} answered: {nearness([one.ratio for one in some if one.ratio is not None])}")
        for why, count in Counter(one.apart for one in ones if one.apart).most_common():
            print(f"    {count:3} apart: {why}")
        for why, count in Counter(one.said[:60] for one in ones if one.ratio is None and not one.apart).most_common():
            print(f"    {count:3} {why}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
