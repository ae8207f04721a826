"""Published training runs beside ours: how fast each was, and what we say of its job.

`python -m tests.published` prints docs/time.md's table, and the runs that are furthest off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from estimator import estimate
from estimator.contract.answer import Time
from tests.held_out import LLM_FOUNDRY, held_out
from tests.jobs import content
from tests.speeds import a100_speeds, megatron_speeds
from tests.splits import split, split_table

FILE = Path(__file__).parent / "data" / "published_runs.yaml"


class Run(NamedTuple):
    """One run: its job, and what was measured: tokens per second and GPU, or seconds of a step."""

    group: str
    name: str
    job: dict[str, Any]
    tokens_per_second_per_gpu: float | None
    step_seconds: float | None

    def time(self) -> Time:
        found = estimate(self.job).time
        assert found is not None
        return found

    def error(self) -> float:
        """Our seconds of a step over those that were measured, less one."""
        time = self.time()
        if self.step_seconds is not None:
            return time.step_seconds / self.step_seconds - 1
        assert self.tokens_per_second_per_gpu is not None
        return self.tokens_per_second_per_gpu / time.tokens_per_second_per_gpu - 1


@cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = content(FILE)
    return found


def not_comparable() -> list[dict[str, str]]:
    """What was published and is not held against ours, with the reason."""
    return list(_table()["not_comparable"])


def published() -> Iterator[Run]:
    """Every run, in the order of the file."""
    models = _table()["models"]
    for group in _table()["groups"]:
        base = group["job"]
        for run in group["runs"]:
            model = models.get(run["model"], run["model"])
            if "changes" in run:
                model = {**model, **run["changes"]}
            hardware = {**base["hardware"], **{key: run[key] for key in ("gpu", "gpus", "nodes") if key in run}}
            parts = {part: {**base.get(part, {}), **run.get(part, {})} for part in ("training", "parallelism")}
            job = {"model": model, "hardware": hardware, **parts}
            yield Run(group["name"], run["name"], job, run.get("tokens_per_second_per_gpu"), run.get("step_seconds"))


def main() -> None:
    """By group: runs, median of the errors with their sign, median, nine tenths and largest of their sizes; then every table of
    measured steps with the rows that a number was fitted to apart from those held out; and the runs that are furthest off."""
    groups: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for run in published():
        groups[run.group].append((run.error(), run.name))
    everything = [(error, f"{group}: {name}") for group, found in groups.items() for error, name in found]
    print("| runs | number | with sign | median | nine tenths within | largest |\n| --- | --- | --- | --- | --- | --- |")
    for name, found in [*groups.items(), ("all", everything)]:
        print(_row(name, found))
    print(f"\n{_held_out(groups)}")
    for error, name in sorted(everything, key=lambda one: -abs(one[0]))[:15]:
        print(f"{error:+.1%} {name}")


def _held_out(groups: Mapping[str, Sequence[tuple[float, str]]]) -> str:
    """Of each table of steps the rows that a number was fitted to, and those that none was."""
    steps = {one.name: one.error for more in (False, True) for one in megatron_speeds(more)}
    tuned = {one.name: one.error for one in a100_speeds()}
    loaded = {name: error for error, name in groups[LLM_FOUNDRY]}
    others = {f"{group}: {name}": error for group, found in groups.items() if group != LLM_FOUNDRY for error, name in found}

    def used(table: str, errors: Mapping[str, float]) -> list[str]:
        return [name for name in errors if not held_out(table, name)]

    return split_table(
        [
            ("Megatron-LM, B200", split(steps, used("b200_steps", steps))),
            (LLM_FOUNDRY, split(loaded, used("llm_foundry_h100", loaded))),
            ("other published runs", split(others)),
            ("fine-tuning, A100", split(tuned)),
        ]
    )


def _row(name: str, found: Sequence[tuple[float, str]]) -> str:
    sizes = sorted(abs(error) for error, _ in found)
    worst, which = max(found, key=lambda one: abs(one[0]))
    tenths = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    signed = median(error for error, _ in found)
    return f"| {name} | {len(found)} | {signed:+.1%} | {median(sizes):.1%} | {tenths:.1%} | {worst:+.1%}, {which} |"


if __name__ == "__main__":
    main()
