"""Draw judged jobs and grids around them, and hold points of each sweep against estimates."""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from typing import Any

from estimator.contract.errors import InvalidJob, NotModelled
from estimator.contract.job import read_job
from estimator.pipeline.judged import judged
from estimator.specs.resolve import resolve
from estimator.sweeps.arrays import BY_PROGRAM, ONE_BY_ONE, REFUSED
from estimator.sweeps.sweep import sweep
from tests.jobs import cases, job_of

JUDGES = ("fake_steps", "real_steps")
VALUES = 6
"""Of each field."""
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2")
ALSO = ("training.gradient_accumulation_steps", "training.adapter.rank", "training.target_length", "training.optimizer_rank")
"""Fields that are varied now and then, too, where the job has them."""


def grid_around(job: dict[str, Any], rng: random.Random) -> dict[str, list[Any]]:
    """Fields of a job and values to try."""
    filled = read_job(job)
    if filled.task == "serve":
        longest = min(filled.serving.context, 4096)
        contexts = sorted({rng.randint(1, longest) for _ in range(VALUES)})
        return {"serving.concurrency": sorted({rng.randint(1, 16) for _ in range(4)}), "serving.context": contexts}
    training = filled.training
    longest = min(2 * training.sequence_length, 4096)
    lengths = {rng.choice((rng.randint(1, longest), 8 * rng.randint(1, max(1, longest // 8)))) for _ in range(VALUES)}
    fields: dict[str, list[Any]] = {
        "training.micro_batch_size": sorted({1, *(rng.randint(1, 24) for _ in range(VALUES))}),
        "training.sequence_length": sorted(lengths),
    }
    for path in ALSO:
        *outer, name = path.split(".")
        part: Any = job
        for each in outer:
            part = part.get(each) if isinstance(part, dict) else None
        if isinstance(part, dict) and isinstance(part.get(name), int) and rng.random() < 0.5:
            fields[path] = sorted({rng.randint(1, 2 * part[name]) for _ in range(3)})
    return fields


def wrong(job: dict[str, Any], fields: dict[str, list[Any]], points: int, rng: random.Random) -> tuple[list[str], Counter[str]]:
    """Points at which a sweep is not what an estimate is, and how many points were answered in which way."""
    found = sweep(job, fields)
    said, counted = [], Counter[str]()
    counted["programs"] = found.programs
    for how, name in ((BY_PROGRAM, "by program"), (ONE_BY_ONE, "one by one"), (REFUSED, "refused")):
        counted[name] = int((found.how == how).sum())
    for _ in range(points):
        at = tuple(rng.randrange(size) for size in found.how.shape)
        values = {path: options[i] for (path, options), i in zip(fields.items(), at, strict=True)}
        try:
            memory = judged(with_values(job, values), reserves=False).memory
        except (InvalidJob, NotModelled):
            if found.how[at] != REFUSED:
                said.append(f"{values} is refused")
            continue
        got = (
            None
            if found.how[at] == REFUSED
            else (int(found.peak_bytes[at]), int(found.resident_bytes[at]), int(found.least_bytes[at]))
        )
        if got != (memory.peak_bytes, memory.resident_bytes, memory.total_bytes):
            said.append(f"{values}: {got}, not {memory.peak_bytes, memory.resident_bytes, memory.total_bytes}")
        counted["compared"] += 1
        counted["compared by program"] += int(found.how[at] == BY_PROGRAM)
    return said, counted


def spread(job: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A job of one GPU, over several in any way, or as it is."""
    if job.get("task") == "serve" or "parallelism" in job or job.get("hardware", {}).get("gpus", 1) > 1 or rng.random() < 0.4:
        return job
    hardware = {**job.get("hardware", {}), "gpus": rng.choice((2, 4, 8))}
    return {**job, "hardware": hardware, "parallelism": {"strategy": rng.choice(STRATEGIES)}}


def with_values(job: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A job with values of its fields, by path."""
    made = job
    for path, value in values.items():
        outer, _, name = path.rpartition(".")
        made = _with(made, outer.split("."), name, value)
    return made


def _with(part: dict[str, Any], outer: list[str], name: str, value: Any) -> dict[str, Any]:
    if not outer:
        return {**part, name: value}
    return {**part, outer[0]: _with(part.get(outer[0]) or {}, outer[1:], name, value)}


def main() -> int:
    """Draw for so many minutes; fails if a point differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--points", type=int, default=6)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    drawn = [case for judge in JUDGES for case in cases(judge) if asked.only in case["name"]]
    rng.shuffle(drawn)
    end, total, families, strategies, failed = time.perf_counter() + 60 * asked.minutes, Counter[str](), set(), set(), 0
    for case in drawn:
        if time.perf_counter() > end:
            break
        job = spread(job_of(case), rng)
        try:
            fields = grid_around(job, rng)
            start = time.perf_counter()
            said, counted = wrong(job, fields, asked.points, rng)
        except (InvalidJob, NotModelled) as error:
            print("cannot be asked", case["name"], str(error)[:200])
            continue
        total += counted
        total["jobs"] += 1
        failed += bool(said)
        families.add(resolve(job["model"]).spec.model_type)
        strategies.add(str(job.get("parallelism", {}).get("strategy")))
        if said or counted["one by one"]:
            print(f"{case['name']}: {dict(counted)} {time.perf_counter() - start:.1f} s", *said[:3], sep="\n    ", flush=True)
    print(f"{len(families)} families, strategies {sorted(strategies)}: {dict(total)}; {failed} jobs with wrong points")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
