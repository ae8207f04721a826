"""Whether vLLM and SGLang start, against what they did: `python -m tests.serving.engine_verdicts`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from estimator import InvalidJob, estimate
from estimator.contract.answer import Answer
from tests.jobs import TESTS, content
from tests.serving import sglang_starts, vllm_starts

TABLE: list[dict[str, Any]] = content(TESTS / "data" / "engine_verdicts.yaml")["rows"]


def asked(row: dict[str, Any]) -> dict[str, Any]:
    """The row as a job."""
    gpus = row.get("gpus", 1)
    return {
        "model": row["model"],
        "task": "serve",
        "hardware": {"gpu": row["gpu"], "gpus": gpus},
        "parallelism": {"tensor": gpus},
        "serving": row["serving"],
    }


@cache
def answered(name: str) -> Answer | None:
    """What is said of a row of the table; None where the job is refused."""
    try:
        return estimate(asked(next(row for row in TABLE if row["name"] == name)))
    except InvalidJob:
        return None


def verdicts() -> Iterator[tuple[str, bool, bool, str, str]]:
    """Of each row its name, whether it started, whether it would by us and why, and why ours is wrong if it is known to be."""
    for row in TABLE:
        answer = answered(row["name"])
        yield row["name"], row["started"], bool(answer and answer.fits), answer.reason if answer else "", row.get("wrong", "")
    for row in vllm_starts.ROWS:
        if "gpu" in row:
            answer = estimate(vllm_starts.asked(row))
            yield row["name"], True, bool(answer.fits), answer.reason or "", ""
    for row in sglang_starts.ROWS:
        if "gpu" in row and "model" in row:
            answer = sglang_starts.answer(row["name"])
            yield row["name"], True, bool(answer.fits), answer.reason or "", ""


def main() -> None:
    """Print how many are right, and those that are not."""
    every = list(verdicts())
    wrong = [one for one in every if one[1] is not one[2]]
    print(f"{len(every) - len(wrong)} of {len(every)} verdicts are right")
    for name, started, _, reason, why in wrong:
        print(f"  {name}: it {'started' if started else 'did not start'}; {reason}\n    {why}")


if __name__ == "__main__":
    main()
