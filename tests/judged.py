"""What the judges said of each case: `python -m tests.judged` asks them all anew and writes tests/data/judged.json.

The tests compare every case with its record (records.py), and ask about a part anew; the accuracy page is made of the records.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

from estimator import Job, estimate
from estimator.families.spec import ModelSpec
from estimator.specs.resolve import resolve
from estimator.verify.step import Counted, fake_step
from tests.jobs import cases, job_of
from tests.judge.real import real_step
from tests.records import FILE, records

ASKED: dict[str, Callable[[Job, ModelSpec], Counted]] = {"fake_steps": fake_step, "real_steps": real_step}


def counted(judge: str, case: dict[str, Any]) -> Counted:
    """Ask a judge about a case: the bytes that it counts at each moment of a step."""
    job = Job.model_validate(estimate(job_of(case)).job)
    return ASKED[judge](job, resolve(job.model).spec)


def main(parts: list[str]) -> None:
    """Ask about every case, or about those whose name has one of `parts` in it and those that have no record."""
    found = records() if FILE.exists() and parts else {}
    lines = []
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for judge in ASKED:
            all_of = {case["name"]: case for case in cases(judge)}
            known = {name: said for name, said in found.get(judge, {}).items() if not any(part in name for part in parts)}
            asked = [case for name, case in all_of.items() if name not in known]
            answers = pool.map(partial(counted, judge), asked, chunksize=4)
            known |= {case["name"]: said for case, said in zip(asked, answers, strict=True)}
            rows = (f"{json.dumps(name)}: {json.dumps(known[name])}" for name in all_of)
            lines.append(f'"{judge}": {{\n' + ",\n".join(rows) + "\n}")
    FILE.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
