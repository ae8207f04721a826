"""Accelerators and nodes as text for a terminal."""

from __future__ import annotations

from typing import Any

from estimator.cli.table import aligned
from estimator.contract.units import gib
from estimator.facts.fact import Fact
from estimator.hardware.accelerator import Accelerator, Link
from estimator.hardware.node import Node

_GPUS = ("name", "for a process", "GB/s", "bf16 TFLOP/s", "joined by", "W", "USD/h", "unverified")
_NODES = ("name", "provider", "GPUs", "joined by", "network, GB/s per node", "vCPUs", "host", "unverified")


def gpus_text(rows: list[dict[str, Any]]) -> str:
    """Accelerators, one a line."""
    return "\n".join(aligned([_GPUS, *(_gpu(row) for row in rows)])) + "\n"


def nodes_text(rows: list[dict[str, Any]]) -> str:
    """Nodes, one a line."""
    return "\n".join(aligned([_NODES, *(_node(row) for row in rows)])) + "\n"


def unverified_text(names: list[str]) -> str:
    """Which facts have no second source, in short."""
    return ", ".join(names) if len(names) <= 2 else f"{names[0]}, {len(names) - 1} more"


def facts_text(about: Accelerator | Node) -> str:
    """One of them with every fact, its sources and its flag."""
    told = [(name, _said(value)) for name, value in about if isinstance(value, bool | str | list) and name not in ("name",)]
    kinds = [(f"{name}.kind", value.kind) for name, value in about if isinstance(value, Link)]
    lines = [about.name, "", *_pairs([*((name, value) for name, value in told if value), *kinds]), ""]
    for name, fact in about.facts.items():
        lines += [f"{name}: {fact.value:,} {fact.unit}{'' if fact.verified else ' (unverified)'}", *_sources(fact)]
    return "\n".join(lines) + "\n"


def _sources(fact: Fact) -> list[str]:
    told = [("source", fact.source), ("second", fact.second_source), ("note", fact.note), ("as of", str(fact.as_of))]
    return _pairs([(name, text) for name, text in told if text])


def _pairs(pairs: list[tuple[str, str]]) -> list[str]:
    return ["  " + line for line in aligned(pairs)] if pairs else []


def _said(value: bool | str | list[str]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else value


def _gpu(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        gib(row["memory_bytes"]),
        f"{row['bandwidth_gb_per_second']:,}",
        _number(row["bf16_tflops"]),
        _link(row["interconnect"], row["interconnect_gb_per_second"]),
        _number(row["power_watts"]),
        row["usd_per_gpu_hour"] or "-",
        unverified_text(row["unverified"]),
    )


def _node(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        row["provider"],
        f"{row['gpus']} x {row['accelerator']}",
        _link(row["interconnect"], row["interconnect_gb_per_second"]),
        _link(row["network"], row["network_gb_per_second"]),
        _number(row["vcpus"]),
        f"{row['host_memory_gib']:,} GiB" if row["host_memory_gib"] else "-",
        unverified_text(row["unverified"]),
    )


def _link(kind: str | None, speed: float | None) -> str:
    return f"{kind} {speed:g}" if kind and speed else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"
