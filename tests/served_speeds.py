"""Published tokens per second beside ours, engine by engine and card by card: the table of docs/serving_time.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from estimator import Answer, estimate
from estimator.contract.answer import Time
from estimator.contract.errors import WillItFitError
from estimator.hardware.accelerator import accelerator
from estimator.pipeline.run import played
from estimator.serving.llamacpp.passes import Passes, passes
from estimator.timing.ggml import timed
from tests.accuracy import table
from tests.held_out import held_out
from tests.jobs import content
from tests.splits import Figures, figures, split_table

FILE = Path(__file__).parent / "data" / "served_speeds.yaml"
OLD = "2024-05"
"""The version of rows of llama.cpp whose kernels ran a node each."""
FAR = 0.3
"""An error up to which a time is near enough."""


class Row(NamedTuple):
    """A published row, with tokens per second: measured, ours, and our range; None where we give none."""

    row: dict[str, Any]
    ours: tuple[float, float, float] | None

    @property
    def error(self) -> float:
        """Of the speed: positive where we are too fast."""
        assert self.ours
        return self.ours[0] / float(self.row["tokens_per_second"]) - 1

    @property
    def within(self) -> bool:
        """Whether it lies in our range."""
        assert self.ours
        return self.ours[1] <= self.row["tokens_per_second"] <= self.ours[2]


@cache
def published() -> dict[str, Any]:
    """tests/data/served_speeds.yaml."""
    found: dict[str, Any] = content(FILE)
    return found


def job_of(row: dict[str, Any]) -> dict[str, Any]:
    """What a row asks."""
    serving = {"engine": row["engine"], "weights": row["weights"], "concurrency": row["concurrency"]}
    serving |= {"prompt_length": row["prompt"], "output_length": row["output"]}
    if row["engine"] == "llama.cpp":
        serving |= {"flash_attention": row["flash"]} | ({"ubatch": row["ubatch"]} if "ubatch" in row else {})
    job = {"model": row["model"], "task": "serve", "hardware": {"gpu": row["gpu"], "gpus": row["gpus"]}, "serving": serving}
    return job if row["engine"] == "llama.cpp" else job | {"parallelism": {"tensor": row["gpus"]}}


@cache
def _answer(job: str) -> Answer | None:
    try:
        return estimate(json.loads(job))
    except WillItFitError:
        return None


def speed_of(row: dict[str, Any], answer: Answer) -> tuple[float, float, float] | None:
    """Tokens per second: expected, least and most."""
    kind, found = row["kind"], answer.serving
    if found is None:
        return None
    if kind == "request":
        tokens, seconds, span = row["prompt"] + row["output"], found.request_seconds, found.range_request_seconds
    else:
        time = found.prefill if kind == "prefill" else found.decode
        tokens, seconds, span = (
            {"prefill": row["prompt"], "decode": 1}.get(kind, row["concurrency"]),
            time.step_seconds,
            time.range_seconds,
        )
        if kind == "step":
            seconds, span = found.time_per_output_token_seconds, found.range_time_per_output_token_seconds
    return tokens / seconds, tokens / span[1], tokens / span[0]


def unfused(found: Passes) -> Passes:
    """Passes as builds ran them that knew no kernel of several nodes."""
    return found._replace(**{name: replace(getattr(found, name), fused=0) for name in ("reading", "last", "step")})


@cache
def _by_old_builds(job: str, gpu: str) -> tuple[Time, Time] | None:
    """Times of a prompt and of a decoding step in llama.cpp's builds of May 2024."""
    run, card = played(json.loads(job), False), accelerator(gpu)
    return timed(run.job, card, unfused(passes(run.job.serving, run.model.spec.language_model, None)))


def _speed(row: dict[str, Any]) -> tuple[float, float, float] | None:
    """As `speed_of` says it, of the build that was measured."""
    asked = json.dumps(job_of(row))
    answer = _answer(asked)
    if answer is None or row.get("version") != OLD:
        return speed_of(row, answer) if answer else None
    prefill, decode = _by_old_builds(asked, row["gpu"]) or (None, None)
    time, tokens = (prefill, row["prompt"]) if row["kind"] == "prefill" else (decode, 1)
    return (tokens / time.step_seconds, tokens / time.range_seconds[1], tokens / time.range_seconds[0]) if time else None


@cache
def rows() -> tuple[Row, ...]:
    """Every row that says enough to be asked."""
    return tuple(Row(row, _speed(row)) for row in (*published()["runs"], *published()["later"]))


def _class(row: dict[str, Any]) -> str:
    many = row["concurrency"]
    return "1" if many == 1 else "2 to 8" if many <= 8 else "9 to 64" if many <= 64 else "more"


def summary(group: Iterable[Row]) -> list[str]:
    """Rows, those without a time, errors of the others, and how many are near and in our range."""
    group = list(group)
    errors = [row.error for row in group if row.ours]
    if not errors:
        return [str(len(group)), str(len(group)), "", "", "", ""]
    near = sum(abs(error) <= FAR for error in errors)
    inside = sum(row.within for row in group if row.ours)
    missing = len(group) - len(errors)
    middle = f"{median(errors):+.0%}"
    return [
        str(len(group)),
        str(missing or ""),
        middle,
        f"{median(map(abs, errors)):.0%}",
        f"{near / len(errors):.0%}",
        f"{inside / len(errors):.0%}",
    ]


def table_of(row: dict[str, Any]) -> str:
    """The table in tests/held_out.py that a row is of; none of rows that no number was fitted to a neighbour of."""
    if row in published()["later"]:
        return ""
    if row["engine"] == "llama.cpp":
        return "radeon_speeds" if row["gpu"] == "radeon-8060s" else "llamacpp_speeds"
    return "h20_speeds" if row["engine"] == "sglang" and row["gpu"] == "h20" else ""


def _halves() -> list[tuple[str, tuple[Figures, Figures]]]:
    """Errors by engine and what is measured, of rows that may have been fitted to apart from all others."""
    kinds: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows():
        if row.ours:
            source = table_of(row.row)
            own = f", {row.row['gpu']}" if row.row["gpu"] in ("radeon-8060s", "h20") else ""
            if row.row["weights"] == "gptq-int4" and row.row["engine"] == "sglang":
                own += ", mixtures in GPTQ"
            if "hipblaslt" in row.row:
                own += ", rocBLAS alone"
            group = kinds.setdefault(f"{row.row['engine']}{own}, {row.row['kind']}", ([], []))
            group[not source or held_out(source, row.row["row"])].append(row.error)
    return [(name, (figures(used), figures(held))) for name, (used, held) in sorted(kinds.items())]


def page() -> dict[str, str]:
    """The parts that are made, by name."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows():
        key = row.row["engine"], row.row["gpu"], row.row["kind"], _class(row.row)
        groups.setdefault(key, []).append(row)
    header = [
        "engine",
        "GPU",
        "what",
        "sequences",
        "rows",
        "no time",
        "middle of the errors",
        "median error",
        "within 30 %",
        "in our range",
    ]
    lines = [[*key, *summary(group)] for key, group in sorted(groups.items())]
    left = published()["left_out"]
    return {
        "published": table(header, lines),
        "published-held-out": split_table(_halves()),
        "left-out": "".join(f"- {one['rows']} rows. {one['why']}\n" for one in left),
    }
