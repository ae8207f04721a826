"""Texts that say how much memory was used: logs, torch's summary, samples of nvidia-smi. `lines.yaml` has the lines of logs."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path
from typing import Any

from estimator.contract.reading import load_yaml
from estimator.measured.record import Amount, Record, amount

SUMMARY, SAMPLES = "memory summary of torch", "samples of nvidia-smi"
MOST_LINE = 4000
"""Characters of a line that are looked at."""
_ROW = re.compile(
    r"^\|\s*(Allocated memory|GPU reserved memory)\s*\|\s*([\d.]+ [KMGT]?i?B)\s*\|\s*([\d.]+ [KMGT]?i?B)\s*\|", re.M
)
_TABLE = re.compile(r"\|\s*(\d+)MiB\s*/\s*(\d+)MiB\s*\|")
_TOKENS = re.compile(r"(?:GPU KV cache size:|max_total_num_tokens=|#tokens:)\s*([\d,]+)")


@cache
def _lines() -> list[dict[str, Any]]:
    found = load_yaml(Path(__file__).parent / "lines.yaml")["rows"]
    return [{**row, "pattern": re.compile(row["pattern"])} for row in found]


def summary(text: str) -> Record | None:
    """`torch.cuda.memory_summary()`: the peaks of the first device that the text has."""
    amounts: dict[str, Amount] = {}
    for name, _, peak in _ROW.findall(text):
        amounts.setdefault("allocated" if name.startswith("Alloc") else "reserved", amount(peak))
    return Record(SUMMARY, amounts) if amounts else None


def samples(text: str) -> Record | None:
    """`nvidia-smi --query-gpu=… --format=csv`, with or without units, or its table: the most that one GPU used."""
    if found := _TABLE.findall(text):
        used, total = max((int(used), int(total)) for used, total in found)
        return _used(used, total)
    try:
        rows = list(csv.reader(text[: 1 << 20].splitlines(), skipinitialspace=True))
    except csv.Error:  # a field of more characters than it takes: no table
        return None
    heads = [cell.strip().lower() for cell in rows[0]] if rows else []
    column = next((i for i, head in enumerate(heads) if head.startswith(("memory.used", "used_gpu_memory", "used_memory"))), None)
    if column is None:
        return None
    whole = next((i for i, head in enumerate(heads) if head.startswith("memory.total")), None)
    seen: list[tuple[int, int | None]] = []
    for row in rows[1:]:
        cells = [re.fullmatch(r"\s*(\d+)\s*(?:MiB)?\s*", cell) for cell in row]
        if column < len(cells) and (used_cell := cells[column]):
            total_cell = cells[whole] if whole is not None and whole < len(cells) else None
            seen.append((int(used_cell[1]), int(total_cell[1]) if total_cell else None))
    return _used(*max(seen, key=lambda one: one[0])) if seen else None


def _used(used: int, total: int | None) -> Record:
    amounts = {"used": amount(f"{used} MiB")}
    if total is not None:
        amounts["framebuffer"] = amount(f"{total} MiB")
    return Record(SAMPLES, amounts)


def log(text: str) -> Record | None:
    """A trainer's or an engine's log: of several kinds of lines those of the kind that has most."""
    found: dict[str, dict[str, list[Amount]]] = {}
    how: dict[tuple[str, str], str] = {}
    lines = text.splitlines()
    rows = [row for row in _lines() if "unless" not in row or row["unless"] not in text]
    for line, after in zip(lines, [*lines[1:], ""], strict=False):
        for row in rows:
            match = row["pattern"].search(line[:MOST_LINE])
            if match is None or row.get("next", "") not in after[:MOST_LINE]:
                continue
            sizes = [size for size in match.groups() if size not in ("K", "V")]
            for size in sizes:
                read = amount(size, row.get("unit", ""), row.get("decimal", False))
                found.setdefault(row["kind"], {}).setdefault(row["quantity"], []).append(read)
            how[row["kind"], row["quantity"]] = row["take"]
    if not found:
        return None
    kind = max(found, key=lambda kind: len(found[kind]))
    amounts = {quantity: _taken(how[kind, quantity], read) for quantity, read in found[kind].items()}
    tokens = [int(one.replace(",", "")) for one in _TOKENS.findall(text)]
    return Record(kind, amounts, numbers={"cache_tokens": tokens[-1]} if tokens and kind != "Trainer log" else {})


def _taken(how: str, read: list[Amount]) -> Amount:
    if how == "sum":
        return Amount(sum(one.bytes for one in read), sum(one.within for one in read))
    return read[-1] if how == "last" else max(read)
