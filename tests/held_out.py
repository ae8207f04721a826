"""Tables of measurements that numbers are fitted to, and which of their rows are held out: no number may be fitted to those.

A row is held out by its name, never by how near the estimate comes to it:

- hash: where the SHA-256 of its name, as a number, can be divided by three;
- series: of each three rows that follow one another, in rising order, the one whose hash comes first;
- groups: whole models, or all products of the same sizes, in the order of their hashes, as long as that brings the rows held out
  nearer to a third of all;
- file: the rows that were looked at last, in a file of their own;
- the others: all but a few that are named, since only those were fitted to.

tests/data/held_out.yaml has a table's rule and, but for tables that are not shipped, the rows by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from estimator.facts import catalogue
from estimator.facts.fact import FittedTo
from estimator.hardware.accelerator import FOLDER as ACCELERATORS
from estimator.hardware.accelerator import Accelerator, accelerator
from tests.jobs import TESTS, content
from tests.measured_runs import a100_runs, fsdp1_runs, megatron_runs, megatron_steps, more_megatron_runs

DATA = Path(__file__).parent / "data"
LLM_FOUNDRY = "llm-foundry, h100"


def order(name: str) -> str:
    """What rows and groups are ordered by."""
    return sha256(name.encode()).hexdigest()


def by_hash(name: str) -> bool:
    """Whether a row of a table that nobody could list is held out."""
    return int(order(name), 16) % 3 == 0


def of_series(names: Sequence[str]) -> set[str]:
    """Of each three rows that follow one another the one whose hash comes first: no end of a series is left to guesses."""
    threes = (names[at : at + 3] for at in range(0, len(names), 3))
    return {min(three, key=order) for three in threes if len(three) > 1}


def whole_groups(groups: Mapping[str, Sequence[str]]) -> set[str]:
    """Rows of whole groups, about a third of all."""
    aim, taken = sum(map(len, groups.values())) / 3, set[str]()
    for group in sorted(groups, key=order):
        if abs(len(taken) + len(groups[group]) - aim) < abs(len(taken) - aim):
            taken |= set(groups[group])
    return taken


@cache
def _read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = content(TESTS / path)
    return found


def _steps() -> list[str]:
    return [name for run in (*megatron_runs(), *more_megatron_runs()) for name in megatron_steps(run)]


def _looked_at_last() -> set[str]:
    return {name for run in more_megatron_runs() for name in megatron_steps(run)}


@cache
def _llm_foundry() -> dict[str, list[str]]:
    """Runs by model."""
    models: dict[str, list[str]] = {}
    group = next(group for group in _read("data/published_runs.yaml")["groups"] if group["name"] == LLM_FOUNDRY)
    for run in group["runs"]:
        models.setdefault(run["model"], []).append(run["name"])
    return models


def product(name: str) -> str:
    """The sizes of a product, alike for the three of a layer: forward, and the gradients of both sides."""
    return " ".join(map(str, sorted(map(int, name.split()[:4]))))


@cache
def _products() -> dict[str, list[str]]:
    """Products by their sizes."""
    found: dict[str, list[str]] = {}
    for name in _read("data/b200_kernels.yaml")["products"]:
        found.setdefault(product(name), []).append(name)
    return found


def speeds_series() -> dict[str, list[str]]:
    """Published speeds of attention: the rows of each series, by length."""
    found = _read("data/attention_speeds.yaml")
    return {
        f"{part} {kernel} {size}": [f"{part} {kernel} {size} {tokens}" for tokens in found["lengths"]]
        for part in ("both", "forward", "backward")
        for kernel, sizes in found[part].items()
        if kernel != "source"
        for size in sizes
    }


def timed_series() -> dict[str, list[str]]:
    """Attention as it was timed beside training, by size of head: tokens, heads, and the size."""
    found: dict[str, list[str]] = {}
    for tokens, heads, size, *_ in _read("data/attention_speeds.yaml")["beside_training"]["b200 cudnn"]:
        found.setdefault(str(size), []).append(f"{tokens} {heads} {size}")
    return found  # in rising order, as they are listed


def _of_each(series: Mapping[str, Sequence[str]]) -> set[str]:
    return {name for names in series.values() for name in of_series(names)}


def _flat(series: Mapping[str, Sequence[str]]) -> list[str]:
    return [name for names in series.values() for name in names]


def _fine_tuning() -> list[str]:
    return [run["name"] for run in (*a100_runs(), *fsdp1_runs())]


@cache
def nvidia_cards() -> list[Accelerator]:
    """Those of which both totals were read, nvidia-smi's and torch's."""
    cards = [accelerator(name) for name in catalogue.names(ACCELERATORS)]
    return [card for card in cards if card.vendor == "nvidia" and card.memory.verified]


def _nodes() -> list[str]:
    return [str(row["payload"]) for row in _read("cases/kernels.yaml")["nodes"]]


@cache
def _speeds() -> dict[str, dict[str, list[str]]]:
    """Published tokens per second: of llama.cpp on many cards by card, on one card by model and backend."""
    tables: dict[str, dict[str, list[str]]] = {"llamacpp_speeds": {}, "radeon_speeds": {}, "h20_speeds": {}}
    for row in _read("data/served_speeds.yaml")["runs"]:
        if row["engine"] == "llama.cpp":
            own = row["gpu"] == "radeon-8060s"
            table, group = ("radeon_speeds", f"{row['model']} {row['backend']}") if own else ("llamacpp_speeds", row["gpu"])
            tables[table].setdefault(group, []).append(row["row"])
        elif row["gpu"] == "h20":
            tables["h20_speeds"].setdefault(row["model"], []).append(row["row"])
    return tables


def _speeds_table(name: str) -> tuple[Callable[[], list[str]], Callable[[], set[str]]]:
    return lambda: _flat(_speeds()[name]), lambda: whole_groups(_speeds()[name])


def _starts() -> list[dict[str, Any]]:
    """What vLLM logged when it started; every third row by name is `aside`."""
    found: list[dict[str, Any]] = _read("data/vllm_starts.yaml")["rows"]
    return found


def _trt_starts() -> list[dict[str, Any]]:
    """What TensorRT-LLM logged when it started; whole models are `aside`."""
    found: list[dict[str, Any]] = _read("data/tensorrt_llm_starts.yaml")["rows"]
    return found


TABLES: dict[str, tuple[Callable[[], list[str]], Callable[[], set[str]] | None]] = {
    "b200_steps": (_steps, _looked_at_last),
    "llm_foundry_h100": (lambda: _flat(_llm_foundry()), lambda: whole_groups(_llm_foundry())),
    "b200_products": (lambda: _flat(_products()), lambda: whole_groups(_products())),
    "attention_speeds": (lambda: _flat(speeds_series()), lambda: _of_each(speeds_series())),
    "b200_attention": (lambda: _flat(timed_series()), lambda: _of_each(timed_series())),
    "fine_tuning_a100": (_fine_tuning, None),
    "cards": (lambda: [card.name for card in nvidia_cards()], None),
    "nodes": (_nodes, None),
    "llamacpp_speeds": _speeds_table("llamacpp_speeds"),
    "radeon_speeds": _speeds_table("radeon_speeds"),
    "h20_speeds": _speeds_table("h20_speeds"),
    "vllm_starts": (lambda: [row["name"] for row in _starts()], lambda: {row["name"] for row in _starts() if row.get("aside")}),
    "tensorrt_llm_starts": (
        lambda: [row["name"] for row in _trt_starts()],
        lambda: {row["name"] for row in _trt_starts() if row.get("aside")},
    ),
}
"""Of each table that is here: its rows, and what its rule holds out; None: all but those that are named."""
SHORT = {
    "b200_memory": ("permute_fwd", "permute_bwd", "ce_fusion"),
    "links": ("A100", "H100", "GB200"),
    "sglang_tokens": ("c512_tp4_500", "c512_tp4_1000", "c512_tp8_500", "c512_tp8_1000"),
}
"""Tables of fewer than six rows, which are not divided; nothing on the pages of accuracy is judged by them."""
WHEEL = ("products", "attention", "decoding", "casts", "collectives", "experts")
"""Tables of aiconfigurator-core, which are not here: `by_hash` of a row's name, as tests/fit_efficiency.py makes it."""


@cache
def listed() -> dict[str, dict[str, Any]]:
    """tests/data/held_out.yaml."""
    return _read("data/held_out.yaml")


def held_out(table: str, name: str) -> bool:
    """Whether no number may be fitted to a row."""
    if table in SHORT:
        return False
    known = listed()[table]
    return name not in known["used"] if "used" in known else name in known["held_out"]


def fitted_rows(fitted_to: FittedTo, table: str) -> list[str]:
    """The rows of a table that is here to which a number was fitted; patterns stand for those that are not held out, but for
    what was looked at."""
    names = SHORT.get(table) or TABLES[table][0]()
    found = []
    for rows in () if fitted_to == "nothing" else fitted_to:
        for row in rows.rows if rows.table == table else ():
            matched = [name for name in names if fnmatchcase(name, row)] if "*" in row else [row]
            if "*" in row and rows.how != "by eye":
                matched = [name for name in matched if not held_out(table, name)]
            found += [name for name in matched if name not in found]
    return found


def main() -> None:
    """Write the rows that the rules hold out."""
    path = DATA / "held_out.yaml"
    text = path.read_text(encoding="utf-8")
    for table, (names, rule) in TABLES.items():
        if rule:
            held = rule()
            kept = ", ".join(f"'{name}'" for name in names() if name in held)
            text = re.sub(rf"(?m)^({table}:\n(?:  (?!held_out).*\n)*  held_out: ).*$", rf"\1[{kept}]", text)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
