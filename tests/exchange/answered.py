"""How many files of a folder are answered, by framework: `python -m tests.exchange.answered FOLDER [WORD]`.

A file is answered if `estimate` takes the job that it is read as, or, of a file that says only how a job is spread, takes it
with a model.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from estimator import estimate
from estimator.contract.errors import WillItFitError
from estimator.exchange import read_file

MODEL = "llama-3-8b"
"""The model of files that name none."""


def files(folder: Path, word: str = "") -> Iterator[Path]:
    """Every file of a folder that may be a configuration."""
    yield from sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md" and word in str(path))


def answered(path: Path) -> tuple[str, str]:
    """The framework that a file was read as, and why it is not answered; nothing where it is."""
    whose = "?"
    try:
        found = read_file(path)
        whose = found.framework
        job = found.job if found.job.get("model") else {"model": MODEL, **found.job}
        if not found.job.get("model"):
            found = read_file(path, model=MODEL)
            job = found.job
        estimate(job)
    except WillItFitError as error:
        return whose, f"{type(error).__name__}: {error}"
    return whose, ""


def main(folder: Path, word: str = "") -> None:
    """Print a line for each file that is not answered, and how many are."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path in files(folder, word):
        start = time.perf_counter()
        whose, why = answered(path)
        kind = path.relative_to(folder).parts[0]
        counts[kind]["answered" if not why else "refused"] += 1
        took = time.perf_counter() - start
        print(f"{kind:18} {path.name[:60]:60} {whose:14} {took:4.1f} s {why[:230] or 'answered'}")
    for kind, count in counts.items():
        print(f"{kind:18} {count['answered']:4} of {count.total():4}")
    everything = sum(counts.values(), Counter())
    print(f"{'all':18} {everything['answered']:4} of {everything.total():4}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
