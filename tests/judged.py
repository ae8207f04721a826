"""What the judges said of each case: `python -m tests.judged` asks them all anew and writes tests/data/judged.json.

The tests of steps compare every case with its record, so that the accuracy page, which is made of the records, is never stale.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from estimator import Job, estimate
from estimator.specs.resolve import resolve
from estimator.verify.step import fake_step
from tests.jobs import cases, counts, job_of
from tests.judge.real import real_step

FILE = Path(__file__).parent / "data" / "judged.json"
JUDGES = {"fake_steps": fake_step, "real_steps": real_step}
STALE = "run: python -m tests.judged"

Verdict = dict[str, dict[str, int]]
"""`estimated` and `counted` bytes at each moment of a step."""


def judged(judge: str, case: dict[str, Any]) -> Verdict:
    """Ask a judge about a case."""
    answer = estimate(job_of(case))
    job = Job.model_validate(answer.job)
    return {"estimated": counts(answer), "counted": JUDGES[judge](job, resolve(job.model).spec)}


@cache
def records() -> dict[str, dict[str, Verdict]]:
    """What was said last, by judge and case."""
    found: dict[str, dict[str, Verdict]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def main(parts: list[str]) -> None:
    """Ask about every case, or about those whose name has one of `parts` in it."""
    found = records() if FILE.exists() and parts else {}
    lines = []
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for judge in JUDGES:
            all_of = {case["name"]: case for case in cases(judge)}
            known = {name: said for name, said in found.get(judge, {}).items() if not any(part in name for part in parts)}
            asked = [case for name, case in all_of.items() if name not in known]
            answers = pool.map(partial(judged, judge), asked, chunksize=4)
            known |= {case["name"]: said for case, said in zip(asked, answers, strict=True)}
            rows = (f"{json.dumps(name)}: {json.dumps(known[name])}" for name in all_of)
            lines.append(f'"{judge}": {{\n' + ",\n".join(rows) + "\n}")
    FILE.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
