"""Draw jobs, hold each against its judge, and say what became of them."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import sys
import time
import warnings
from collections import Counter
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.draw.findings import judge, keep
from tests.draw.jobs import drawn
from tests.draw.mending import mended
from tests.draw.outcome import Outcome, estimated, judged
from tests.draw.shrink import shrunk

BATCH = 200
"""Draws after which a worker is replaced: fake tensors leave something behind."""
TRIES = 16
"""How often a refused job is mended."""
PATIENCE = 600
"""Seconds that one draw may take, and the shrinking of one."""
LEFT = 0.2
"""Share of jobs that no judge can play which are left so, when they are drawn."""


def draw(seed: str, width: str, only: str) -> tuple[dict[str, Any], Outcome, Counter[str]]:
    """One draw: a job, mended until it is not refused, what became of it, and what refused it on the way."""
    rng, refusals = random.Random(seed), Counter[str]()
    job = drawn(rng, width, only)
    for _ in range(TRIES):
        answer = estimated(job)
        found = answer if isinstance(answer, Outcome) else judged(answer)
        if found.kind in ("equal", "finding") or (found.kind == "not judged" and rng.random() < LEFT):
            return job, found, refusals
        if found.kind == "refused":
            refusals[found.why] += 1
        smaller = mended(job, found.where, rng)
        if smaller is None:
            break
        job = smaller
    return job, found, refusals


def _work(out: Connection, seeds: list[str], width: str, only: str) -> None:
    """A worker: draws, says each outcome, and ends."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for seed in seeds:
        out.send((seed, None))
        began = time.process_time()
        job, found, refusals = draw(seed, width, only)
        gc.collect()
        gc.freeze()
        out.send((seed, (job, found, refusals, time.process_time() - began)))
        if found.kind == "finding":
            out.send((seed, "shrinking"))
            out.send((seed, (*shrunk(job, found), None)))
    out.close()


class Run:
    """Workers, each with a batch of seeds, until the time is over."""

    def __init__(self, asked: argparse.Namespace):
        self.asked, self.next, self.until = asked, 0, time.monotonic() + 60 * asked.minutes
        self.found: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.reasons: dict[str, Counter[str]] = {"refused": Counter(), "not judged": Counter(), "finding": Counter()}
        self.workers: dict[Connection, Any] = {}

    def seeds(self, count: int) -> list[str]:
        first, self.next = self.next, self.next + count
        return [f"{self.asked.seed}-{i}" for i in range(first, self.next)]

    def start(self, seeds: list[str]) -> None:
        context = get_context("fork")
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(there, seeds, self.asked.width, self.asked.only), daemon=True)
        process.start()
        there.close()
        self.workers[here] = [process, seeds, None, time.monotonic()]

    def more(self) -> bool:
        return self.asked.draws is None or self.next < self.asked.draws

    def note(self, seed: str, job: dict[str, Any], found: Outcome, refusals: Counter[str], seconds: float = 0.0) -> None:
        """Count what became of a draw, which took so much processor time."""
        self.found[found.kind] += 1
        self.refusals += refusals
        if found.kind in self.reasons:
            self.reasons[found.kind][found.why] += 1
        line = {
            "seed": seed,
            "kind": found.kind,
            "why": found.why,
            "detail": found.detail,
            "seconds": round(seconds, 2),
            "job": job,
        }
        with open(self.asked.log, "a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        if found.kind == "finding":
            print(f"{seed}: {found.why}; {found.detail[:300]}", flush=True)

    def ended(self, pipe: Connection, late: bool = False) -> None:
        """A worker is done, has died or is late: a draw at which it died is a finding, and what it had left is begun anew."""
        process, seeds, at, _ = self.workers.pop(pipe)
        over = time.monotonic() > self.until
        if process.is_alive():
            process.join(timeout=5)
        if process.is_alive():
            process.kill()
        pipe.close()
        process.join()
        if at is not None:
            if at[1] == "drawing" and late:
                self.note(at[0], {}, Outcome("not judged", f"it takes more than {PATIENCE} seconds"), Counter())
            elif at[1] == "drawing" and not over:
                self.note(at[0], {}, Outcome("finding", "the process died", detail=str(process.exitcode)), Counter())
            left = seeds[seeds.index(at[0]) + 1 :]
        else:
            left = []
        if not over and (left or self.more()):
            self.start(left or self.seeds(BATCH))

    def go(self) -> None:
        gc.collect()
        gc.freeze()  # what is imported need not be looked through after each draw
        for _ in range(self.asked.workers):
            self.start(self.seeds(BATCH))
        while self.workers:
            for pipe in wait(list(self.workers), timeout=5):
                assert isinstance(pipe, Connection)
                worker = self.workers[pipe]
                try:
                    seed, said = pipe.recv()
                except EOFError:
                    self.ended(pipe)
                    continue
                worker[3] = time.monotonic()
                if said is None or said == "shrinking":
                    worker[2] = (seed, "shrinking" if said else "drawing")
                elif said[2] is None:
                    worker[2] = None
                    keep(Path(self.asked.keep), seed, said[0], said[1])
                else:
                    worker[2] = None
                    self.note(seed, *said)
                    if time.monotonic() > self.until and said[1].kind != "finding":
                        worker[0].kill()
            for pipe, worker in list(self.workers.items()):
                if time.monotonic() - worker[3] > PATIENCE:
                    worker[0].kill()
                    self.ended(pipe, late=True)

    def summary(self) -> dict[str, Any]:
        """Counts, the most frequent first."""
        return {
            "draws": self.found.total(),
            **{kind: self.found[kind] for kind in ("equal", "refused", "not judged", "finding")},
            **{f"{kind}, by reason": dict(why.most_common()) for kind, why in self.reasons.items() if why},
            "refusals on the way": dict(self.refusals.most_common(25)),
        }


def main() -> int:
    """`python -m tests.draw`; 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.draw", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--draws", type=int, help="no more than these")
    parser.add_argument("--width", choices=("small", "full"), default="small")
    parser.add_argument(
        "--only", default="", help="a mode (one, fsdp, tensor, data, megatron, torchtitan, serve), or families with commas"
    )
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--keep", default="tests/cases/drawn.yaml", help="where findings are kept")
    parser.add_argument("--log", default="/dev/null", help="a file that gets a line of JSON for each draw")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="draw nothing: ask the judge about the cases of a file anew")
    asked = parser.parse_args()
    if asked.judge:
        judge(asked.judge)
        return 0
    run = Run(asked)
    run.go()
    summary = run.summary()
    json.dump(summary, sys.stdout, indent=1)
    print()
    return 1 if summary["finding"] else 0


if __name__ == "__main__":
    sys.exit(main())
