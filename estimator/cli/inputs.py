"""What a command reads and writes: jobs, standard input, files, and the answer itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from estimator.contract.errors import Contradiction, Unreadable

if TYPE_CHECKING:
    from estimator.contract.job import Job
    from estimator.exchange.found import Found


INTERRUPTED = 130
"""Exit code of what Ctrl-C ended, as shells have it."""


class Answered(Protocol):
    """What REST sends, too."""

    def to_json(self) -> str: ...


AnyAnswer = TypeVar("AnyAnswer", bound=Answered)


def today() -> date:
    """By which a price is old."""
    return date.today()


def job(asked: str) -> Job:
    """The job of a file, or of standard input."""
    from estimator.contract.job import job_from_text, read_job

    return job_from_text(standard_input(), "standard input") if asked == "-" else read_job(asked)


def any_job(options: argparse.Namespace) -> str | dict[str, Any]:
    """The path of any file that is read as a job; what standard input says; or a usual way of using a model, where `--task` says
    which, spread over what `--on` says."""
    given = {name: getattr(options, name, None) for name in ("context", "sequence")}
    lengths = {name: value for name, value in given.items() if value is not None}
    if (task := getattr(options, "task", None)) is not None:
        from estimator.exchange.documents import is_configuration
        from estimator.planner.cases import Lengths, usual_job

        if options.on is None:
            raise Contradiction("is of a model's name: say with --on what it is to run on, too", "--task")
        if options.job == "-" or is_configuration(Path(options.job)):
            raise says_its_task(options.job)
        on, options.on = options.on, None  # which may be more GPUs than it is spread over
        return usual_job(options.job, on, task, Lengths(**lengths))
    if lengths:
        raise Contradiction("is of a model's name: say with --task how it is used, too", f"--{next(iter(lengths))}")
    if options.job != "-":
        return str(options.job)
    from estimator.exchange import Surroundings, read

    return read(standard_input(), around=Surroundings(allow_files=True)).job


def says_its_task(job: str) -> Contradiction:
    """The error of `--task` beside a file."""
    job = "standard input" if job == "-" else job
    return Contradiction(f"{job} says its task itself; --task is of a model's name", "--task")


def with_data(found: Found, options: argparse.Namespace) -> Found:
    """What a file says, on sequences as long as the samples of `--data`, where that was given."""
    if options.data is None:
        if options.tokenizer is not None:
            raise Contradiction("counts the text of --data: give that, too", "--tokenizer")
        return found
    from estimator.exchange.data import read_data
    from estimator.exchange.lengths import with_data

    return with_data(found, read_data(options.data, options.tokenizer), Path(options.data).name)


def standard_input() -> str:
    """Its text, bounded as that of a file. Raises `Unreadable`."""
    from estimator.contract.reading import bounded_text

    return bounded_text(sys.stdin.buffer, "standard input")


def write(path: str, content: bytes) -> str:
    """Write a file, and its path. Raises `Unreadable` where that cannot be done."""
    try:
        Path(path).write_bytes(content)
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be written: {getattr(error, 'strerror', None) or error}", path) from None
    return path


def printed(options: argparse.Namespace, found: AnyAnswer, text: Callable[[AnyAnswer], str]) -> None:
    """Print an answer: as JSON where that was asked for, else in words."""
    sys.stdout.write(found.to_json() if options.json else text(found))
