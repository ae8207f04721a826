"""Whether the bundle for browsers answers as native Python does: `python -m tests.bundled [DIR]`.

DIR has a bundle, or gets one; without it one is made and thrown away. Its npm package is asked about 200 jobs in Node, and each
answer held against `estimate`'s: equal in every byte of every string and whole number, floats to 12 digits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from api.answers import answer
from api.browser.bundle import bundle
from api.browser.packages import Missing, node
from tests.jobs import cases, job_of
from tests.records import JUDGES, alike

ASKS = Path(__file__).parent / "bundled.mjs"
COUNT = 200
Said = dict[str, Any]
"""An answer, or a problem where a job is refused."""


def jobs(count: int = COUNT) -> list[dict[str, Any]]:
    """Jobs of the tables, in even steps through them, and the ways of writing a job that the golden answers have."""
    found = [case["job"] for case in cases("golden")] + [job_of(case) for judge in JUDGES for case in cases(judge)]
    return [found[number * len(found) // count] for number in range(min(count, len(found)))]


def made_at(folder: Path) -> Path:
    """A folder with a bundle, made where there is none. Raises `Missing`."""
    if not folder.exists():
        with TemporaryDirectory(dir=folder.parent) as work:
            made = bundle(Path(work) / "bundle").folder
            with suppress(OSError):  # another process's was there first
                made.rename(folder)
    return folder


def natively(job: dict[str, Any]) -> Said:
    """What this interpreter says, by the service's own code."""
    found: Said = json.loads(answer("estimate", {"job": json.dumps(job).encode()}).body)
    return found


def in_node(folder: Path, asked: Iterable[dict[str, Any]]) -> list[Said]:
    """What the npm package says in Node."""
    command = [node(), str(ASKS), str(folder.resolve() / "engine" / "index.mjs")]
    done = subprocess.run(command, input=json.dumps([json.dumps(job) for job in asked]), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return [json.loads(text) for text in json.loads(done.stdout)]


def differences(asked: list[dict[str, Any]], said: list[Said]) -> list[str]:
    """Jobs of which two answers differ, and where they do."""
    native = map(natively, asked)
    return [f"{json.dumps(job)}: {_where(a, b)}" for job, a, b in zip(asked, native, said, strict=True) if not alike(a, b)]


def _where(a: Any, b: Any) -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        name = next((name for name in a | b if not alike(a.get(name), b.get(name))), "")
        return f"{name}: {_where(a.get(name), b.get(name))}" if name else ""
    return f"{str(a)[:200]} natively, {str(b)[:200]} in the bundle"


def main() -> int:
    """Ask about every job; 1 if one is answered otherwise."""
    with TemporaryDirectory() as work:
        try:
            folder = made_at(Path(sys.argv[1]) if sys.argv[1:] else Path(work) / "bundle")
        except Missing as missing:
            print(f"no bundle can be made: {missing}")
            return 1
        asked, start = jobs(), perf_counter()
        said = in_node(folder, asked)
        took = perf_counter() - start
    found = differences(asked, said)
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(asked) - len(found)} of {len(asked)} jobs are answered in WebAssembly as natively, in {took:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
