"""Whether what `willitfit fix` proposes for a folder's files holds: `python -m tests.exchange.mended FOLDER --on 24GB`.

Of each file that does not fit, each patch is applied to a copy of the folder's file, and the result read and estimated again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from estimator import estimate, fix_file, read_file
from estimator.contract.errors import WillItFitError
from tests.exchange.answered import files


def proposals(path: Path, on: str) -> Iterator[str]:
    """What became of each fix of a file, and its edits; why there is none, or nothing was asked."""
    try:
        found = fix_file(path, on)
    except WillItFitError as error:
        yield f"not asked: {type(error).__name__}: {error}"
        return
    if found.fits is not False:
        yield "not asked: it fits, or that is not known"
    elif not found.fixes:
        yield f"no fix: {found.problem}"
    for one in found.fixes:
        edits = ", ".join(f"{edit.key}: {edit.before} -> {edit.after}" for change in one.changes for edit in change.edits)
        yield f"{_held(path, on, one.patch, one.total_bytes)}: {edits} ({'same result' if one.same_result else 'another run'})"


def _held(path: Path, on: str, patch: str, total_bytes: int) -> str:
    """Whether a patch applies to a copy of the file among what lies beside it, and makes a job that fits."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(path.parent, Path(folder) / "beside")) / path.name
        applied = subprocess.run(["patch", "-p0", "-s", str(copy)], input=patch, text=True, capture_output=True)
        if applied.returncode:
            return f"WRONG, does not apply ({applied.stdout.strip()[:100]})"
        try:
            answer = estimate(read_file(copy, on).job)
        except WillItFitError as error:
            return f"WRONG, refused ({error})"
        if answer.fits is not True:
            return "WRONG, does not fit"
        same = answer.memory.total_bytes == total_bytes
        return "holds" if same else f"WRONG, takes {answer.memory.total_bytes} and not {total_bytes} bytes"


def main() -> None:
    """A line for each fix of each file, and how many there are of each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--on", default="24GB")
    parser.add_argument("--word", default="", help="files whose path has it alone")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for path in files(options.folder, options.word):
        start = time.perf_counter()
        for said in proposals(path, options.on):
            counts[said.partition(":")[0].partition(" (")[0]] += 1
            print(f"{path.name[:60]:60} {time.perf_counter() - start:5.1f} s {said[:300]}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
