"""How many copies bear a load, as text for a terminal."""

from __future__ import annotations

from estimator.cli.table import aligned
from estimator.planner.replicas_answer import Load, Replicas, ReplicasRow

_HEADER = ("copies of", "number", "range", "GPUs", "at a time", "first token", "next tokens", "most of one", "per hour", "at")
MANY = 8
"""Rows of what does not bear it that are shown."""


def replicas_text(found: Replicas) -> str:
    """The cheapest and the one with fewest GPUs, the rows, what does not bear it, and what is taken for granted."""
    answer = "UNKNOWN" if found.possible is None else "YES" if found.possible else "NO"
    lines = [f"{answer}: {found.model}, {_load(found.load)}: {found.reason}", ""]
    for title, row in (("cheapest", found.cheapest), ("fewest GPUs", found.fewest)):
        if row is not None:
            lines.append(f"{title:12} {_said(row)}")
    if found.rows:
        lines += ["", *aligned([_HEADER, *map(_cells, found.rows)])]
        if found.found > len(found.rows):
            lines.append(f"and {found.found - len(found.rows)} more: --top says how many are listed")
    if found.failed:
        lines += ["", "Does not bear it"]
        lines += [f"  {one.gpus} x {one.accelerator}: {one.reason}" for one in found.failed[:MANY]]
    if found.unknown:
        lines += ["", f"Speed not known: {', '.join(found.unknown)}"]
    lines += ["", "Taken for granted", *(f"  {said}" for said in found.assumptions)]
    return "\n".join(lines) + "\n"


def _load(load: Load) -> str:
    limits = [
        f"{what} within {seconds * 1e3:g} ms"
        for what, seconds in (
            ("first token", load.time_to_first_token_seconds),
            ("each after it", load.time_per_output_token_seconds),
        )
        if seconds is not None
    ]
    tokens = f"{load.requests_per_second:g} requests a second of {load.prompt_tokens:,} tokens in and {load.output_tokens:,} out"
    return ", ".join([tokens, *limits])


def _said(row: ReplicasRow) -> str:
    price = "no price known" if row.price_per_hour is None else f"{row.price_per_hour} {row.currency} an hour"
    doubt = "" if row.certain else "; with kernels at the slow end of their range it takes more, or breaks a limit"
    return f"{row.replicas} x ({row.gpus} x {row.accelerator}), {price}{doubt}"


def _cells(row: ReplicasRow) -> tuple[str, ...]:
    low, high = row.range_replicas
    return (
        f"{row.gpus} x {row.accelerator}",
        f"{row.replicas:,}",
        f"{low:,} to {high:,}",
        f"{row.total_gpus:,}",
        f"{row.sequences:,}",
        f"{row.time_to_first_token_seconds * 1e3:.3g} ms",
        f"{row.time_per_output_token_seconds * 1e3:.3g} ms",
        f"{row.most_requests_per_second:.3g} /s",
        "-" if row.price_per_hour is None else f"{row.price_per_hour} {row.currency}",
        "" if row.provider is None else f"{row.instances} x {row.provider} {row.instance}",
    )
