"""Measured speeds of inference engines beside ours, and the parts of the page on them that are made."""

from __future__ import annotations

from functools import cache
from statistics import median
from typing import Any, NamedTuple

from estimator import Answer, estimate
from estimator.contract.answer import ServingTime
from tests.accuracy import table
from tests.measured_runs import mixture_runs, serving_runs
from tests.splits import split, split_table


class Run(NamedTuple):
    """A measured run, with the seconds from a request to its last token, and ours."""

    row: dict[str, Any]
    measured: float
    answer: Answer

    @property
    def serving(self) -> ServingTime:
        assert self.answer.serving
        return self.answer.serving

    @property
    def error(self) -> float:
        return self.serving.request_seconds / self.measured - 1

    @property
    def mixture(self) -> bool:
        """Whether the model has experts."""
        return self.row in mixture_runs()

    @property
    def queues(self) -> bool:
        """Whether the sequences that are asked for at once may outgrow the cache: then requests wait for one another."""
        return self.answer.verdict != "fits"

    @property
    def within(self) -> bool:
        """Whether it lies in our range."""
        low, high = self.serving.range_request_seconds
        return low <= self.measured <= high


NAMES = {"trtllm": "tensorrt-llm"}
"""What the table calls engines otherwise."""


def job_of(row: dict[str, Any]) -> dict[str, Any]:
    """What a row asks."""
    lengths = {"prompt_length": row["prompt"], "output_length": row["output"], "concurrency": row["concurrency"]}
    engine: dict[str, Any] = {"engine": NAMES.get(row["engine"], row["engine"])}
    if ranks := row.get("experts"):
        engine |= {"enable_expert_parallel": True} if row["engine"] == "vllm" else {"ep_size": ranks}
    if row.get("moe_mxfp8"):
        engine["moe_mxfp8"] = True
    if "unquantized" in row:
        engine["unquantized"] = row["unquantized"]
    return {
        "model": row["model"],
        "task": "serve",
        "hardware": {"gpu": row["gpu"], "gpus": row["tensor"]},
        "parallelism": {"tensor": row["tensor"]},
        "serving": {**engine, **lengths, "weights": row["weights"], "kv_cache": row["kv_cache"]},
    }


@cache
def runs() -> list[Run]:
    """Every run."""
    found = []
    for row in serving_runs():
        measured = (row["first_token_ms"] + (row["output"] - 1) * row["output_token_ms"]) / 1000
        found.append(Run(row, measured, estimate(job_of(row))))
    return found


def played_again(run: Run) -> Run:
    """A run as it is answered now."""
    return run._replace(answer=estimate(job_of(run.row)))


def page() -> dict[str, str]:
    """The parts that are made, by name."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs():
        if not run.queues:
            groups.setdefault((run.row["engine"], run.row["gpu"], run.row["model"], run.row["weights"]), []).append(run)
    header = ["engine", "GPU", "model", "weights", "runs", "median error", "middle of the errors", "worst", "in our range"]
    everything = [run for group in groups.values() for run in group]
    lines = [[*key, *_summary(group)] for key, group in sorted(groups.items())]
    queued = [_described(run) for run in runs() if run.queues]
    columns = ["run", "tensor", "tokens in", "tokens out", "at a time", "measured", "ours", "error"]
    return {
        "groups": table(header, [*lines, ["**all**", "", "", "", *_summary(everything)]]),
        "held-out": split_table(
            [
                ("requests to dense models", split({run.row["row"]: run.error for run in everything if not run.mixture})),
                ("requests to mixtures", split({run.row["row"]: run.error for run in everything if run.mixture})),
                ("requests that queue for the cache", split({run.row["row"]: run.error for run in runs() if run.queues})),
            ]
        ),
        "runs": f"<details><summary>every run</summary>\n\n{table(columns, list(map(_described, everything)))}\n</details>\n",
        "queued": table(columns, queued),
    }


def _summary(group: list[Run]) -> list[str]:
    errors = [run.error for run in group]
    sizes = [abs(error) for error in errors]
    inside = sum(run.within for run in group)
    return [str(len(group)), f"{median(sizes):.0%}", f"{median(errors):+.0%}", f"{max(sizes):.0%}", f"{inside} of {len(group)}"]


def _described(run: Run) -> list[str]:
    row = run.row
    name = f"{row['engine']}, {row['gpu']}, {row['model']}, {row['weights']}"
    sizes = [str(row[key]) for key in ("tensor", "prompt", "output", "concurrency")]
    return [name, *sizes, f"{run.measured:.2f} s", f"{run.serving.request_seconds:.2f} s", f"{run.error:+.0%}"]
