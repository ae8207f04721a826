"""An assertion that the jobs of files fit: `assert_fits("configs/*.yaml", on="8xH100")`."""

from __future__ import annotations

from glob import glob
from pathlib import Path

from estimator.contract.errors import Unreadable
from estimator.planner.check import Checked, check_files
from estimator.views.checks import LEVELS, text


class DoesNotFit(AssertionError):
    """A job does not fit; the message says which, why, and what would make it fit."""


class NotKnown(AssertionError):
    """Of a job it cannot be said whether it fits, and none is known not to."""


def assert_fits(*patterns: str | Path, on: str | None = None, model: str | None = None, unknown: bool = False) -> Checked:
    """That the jobs of all files fit; what was found of each.

    `patterns`: files, or patterns such as "configs/**/*.yaml", of jobs, configurations, commands and scripts; what is no file of
    a job is passed over. `on`: hardware such as 8xH100, in place of what each says. `model`: that of files that name none.
    `unknown`: let a file pass of which it cannot be said. Raises `DoesNotFit`, `NotKnown` unless `unknown`, and `Unreadable`
    where no file of a job matches: an assertion about nothing holds nothing.
    """
    __tracebackhide__ = True
    files = sorted({path for pattern in patterns for path in glob(str(pattern), recursive=True) if Path(path).is_file()})
    found = check_files(files, on, model)
    if not [file for file in found.files if file.verdict != "skipped"]:
        raise Unreadable(f"no file of a job matches, from {Path.cwd()} on", ", ".join(map(str, patterns)) or "assert_fits")
    wrong = found.model_copy(update={"files": [file for file in found.files if file.verdict in LEVELS]})
    if found.fits is False:
        raise DoesNotFit(f"does not fit on {on or 'its hardware'}:\n{text(wrong)}")
    if found.fits is None and not unknown:
        raise NotKnown(f"it cannot be said whether it fits:\n{text(wrong)}")
    return found
