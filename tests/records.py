"""What the judges said of each case, and whether estimates still say it: `python -m tests.records`, with `--all` every whole
answer, with `--share` of one case in three, and of others after each change of the estimator's code.

Needs nothing that the estimator does not need, no torch and no pytest, so that any interpreter can be asked: `.ci/interpreters`
asks several, and holds the last lines that they print against each other.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from math import isclose
from pathlib import Path
from time import perf_counter
from typing import Any

from estimator import Answer, estimate, fit
from estimator.cli.report import answer_text
from estimator.cli.report_headline import headline_text
from estimator.pipeline.judged import judged
from estimator.specs.resolve import resolve
from tests.jobs import TODAY, cases, counts, job_of
from tests.shares import turn

HERE = Path(__file__).parent
FILE = HERE / "data" / "judged.json"
JUDGES = ("fake_steps", "real_steps")
"""Tables of cases, each named for what judges it."""
WORST = 0.005
"""The widest bound that a case may have."""
WHOLE = 4
"""Of one case in so many the whole answer is asked for; of the others the bytes that torch was asked about."""
SHARE = 3
"""Of one case in so many anything is asked, where a share is."""
DIGITS = 1e-12
"""Relative; times and costs are floats, whose last bits are the platform's mathematical library's."""


@cache
def records() -> dict[str, dict[str, dict[str, int]]]:
    """The bytes at each moment of a step, by judge and case."""
    found: dict[str, dict[str, dict[str, int]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def difference(judge: str, case: dict[str, Any], estimated: dict[str, int]) -> str:
    """How an estimate differs from the record of its case; nothing where they are equal, or as far apart as the case says."""
    recorded = records()[judge].get(case["name"])
    if recorded is None:
        return "has no record; run: python -m tests.judged"
    if "within" not in case:
        return "" if estimated == recorded else f"{estimated}, not {recorded}"
    if not case.get("why") or case["within"] > WORST:
        return f"must say why, and be off by {WORST:.1%} at most"
    error = max(abs(estimated[name] / recorded[name] - 1) for name in recorded)
    return "" if case["within"] / 10 < error <= case["within"] else f"off by {error:.3%}, not {case['within']:.3%}"


def of_every_family(judge: str, share: int) -> list[dict[str, Any]]:
    """The first case of each family, and of the others one in `share`; none that is judged elsewhere (judge/bottleneck.py,
    judge/torchtitan.py)."""
    seen, found = set(), []
    here = [case for case in cases(judge) if not _elsewhere(case.get("training", {}))]
    for i, case in enumerate(here):
        family = resolve(job_of(case)["model"]).spec.model_type
        if family not in seen or i % share == 0:
            found.append(case)
        seen.add(family)
    return found


def _elsewhere(training: dict[str, Any]) -> bool:
    """Whether a case is judged by a library that is not among what the tests need."""
    return training.get("adapter", {}).get("type") == "bottleneck" or training.get("implementation") == "torchtitan"


def alike(a: Any, b: Any) -> bool:
    """Whether two answers are equal, but for the last bits of floats."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return isclose(a, b, rel_tol=DIGITS)
    return type(a) is type(b) and bool(a == b)


def golden() -> list[str]:
    """Names of kept answers that differ from what is answered now."""
    headline = fit("llama-2-13b", "2x24GB")
    now = {"headline": (headline.to_json(), headline_text(headline))}
    for case in cases("golden"):
        answer = estimate(case["job"], today=TODAY)
        now[case["name"]] = answer.to_json(), answer_text(answer)
    return [name for name, (content, text) in now.items() if not (_kept(name, "json", content) and _kept(name, "txt", text))]


def _kept(name: str, kind: str, now: str) -> bool:
    """Whether a golden file says what is said now."""
    kept = (HERE / "golden" / f"{name}.{kind}").read_text(encoding="utf-8")
    return kept == now if kind == "txt" else alike(json.loads(kept), json.loads(now))


def main(words: Sequence[str] = ()) -> int:
    """Ask about cases, and for the whole answer of some; 1 if one is not as recorded."""
    start, digest, wrong = perf_counter(), sha256(), 0
    share, whole = (SHARE if "--share" in words else 1), (1 if "--all" in words else WHOLE)
    asked = [(judge, case) for judge in JUDGES for case in cases(judge)]
    asked = asked[turn() % share :: share] or asked
    for at, (judge, case) in enumerate(asked):
        job = job_of(case)
        answer = estimate(job, today=TODAY) if at % whole == 0 else judged(job, reserves=False)
        said = difference(judge, case, counts(answer))
        if said:
            print(f"{judge} {case['name']}: {said}")
        wrong += bool(said)
        if isinstance(answer, Answer):
            # six digits of floats: enough to see another number, too few to see another library's last bit
            digest.update(json.dumps(json.loads(answer.to_json(), parse_float=lambda text: f"{float(text):.6g}")).encode())
    differ = golden()
    for name in differ:
        print(f"{name}: not what tests/golden/{name}.json and .txt keep")
    python = f"{platform.python_implementation()} {platform.python_version()} ({platform.machine()})"
    print(f"{python}: {len(asked) - wrong} of {len(asked)} steps as torch counted them, in {perf_counter() - start:.0f} s")
    print(f"one whole answer in {whole}: {digest.hexdigest()}")
    return 1 if wrong or differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
