"""How near answers come to figures that were published beside a framework's configuration: `python -m tests.exchange.published
FILE [WORD]`.

A row of the file has `framework`, `config` (its keys), `gpus`, `kind` and `measured: {value, unit}`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from estimator import Answer, estimate
from estimator.contract.errors import WillItFitError
from estimator.contract.job import Hardware
from estimator.exchange import READ, Surroundings, read

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


def _word(value: Any) -> str:
    """A value as a command has it; a list is one that its blanks have parted."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def predicted(answer: Answer, kind: str) -> int | None:
    """The answer's bytes of the kind that was measured."""
    memory = answer.memory
    if "max_memory_allocated" in kind:
        return memory.peak_bytes
    if "nvidia-smi" in kind:
        return memory.total_bytes
    return memory.reserved_bytes or memory.peak_bytes


def compared(row: dict[str, Any]) -> tuple[float | None, str]:
    """The prediction over the measurement; None, and why, where there is none."""
    given, whose = text(row)
    hardware = Hardware(gpus=row["gpus"]) if row.get("gpus") else None
    try:
        found = read(
            given, whose, around=Surroundings(name=row.get("config_file") or row["id"], hardware=hardware, allow_files=False)
        )
        answer = estimate(found.job, allow_files=False)
    except WillItFitError as error:
        return None, f"{type(error).__name__}: {error}"
    value = predicted(answer, str(row["kind"]))
    measured = row["measured"]["value"] * BYTES[row["measured"]["unit"]]
    return (value or 0) / measured, "; ".join(one.key for one in found.left_out)


def main(path: Path, word: str = "") -> None:
    """Print a line for each row, and how near they are by framework."""
    rows = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["rows"]
    rows = [row for row in rows if row["tier"] in "AB" and word in row["id"] and row["measured"].get("unit") in BYTES]
    rows = [row for row in rows if not any(other in str(row["kind"]) for other in OTHER)]
    ratios: dict[str, list[float]] = defaultdict(list)
    refused: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        ratio, said = compared(row)
        print(f"{row['id'][:58]:58} {row['measured']['value']:8} {'-' if ratio is None else f'{ratio:.2f}':>5}  {said[:150]}")
        if ratio is None:
            refused[row["framework"]][said[:60]] += 1
        else:
            ratios[row["framework"]].append(ratio)
    for whose in sorted({row["framework"] for row in rows}):
        found = [abs(ratio - 1) for ratio in ratios[whose]]
        near = sum(error <= 0.15 for error in found)
        middle = f"median error {median(found):.1%}, {near} within 15 %" if found else "none"
        print(f"{whose:16} answered {len(found)} of {len(found) + refused[whose].total()}: {middle}")
        for why, count in refused[whose].most_common():
            print(f"    {count:3} {why}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
