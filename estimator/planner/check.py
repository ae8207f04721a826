"""Several files at once, as a gate asks of them: which of their jobs fit, and where one does not, which edit would do it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from estimator.contract.answer import AnswerPart, Versions, WholeAnswer
from estimator.contract.errors import NoJob, Unreadable, WillItFitError
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange import is_configuration
from estimator.hardware.parse import read_hardware
from estimator.planner.answers import Edit, Fix, Fixes
from estimator.planner.fix import fix, fix_file

CANNOT_SAY = 2
NO_JOB = "is no job, and no file of a framework that is known"
NO_HARDWARE = "neither the file nor `on` says on which hardware, such as 24GB or 8xH100"


class CheckedFile(AnswerPart):
    """A file, and whether its job fits."""

    path: str
    framework: str | None
    """Whose file it is; null where that is not known."""
    verdict: Literal["fits", "does not fit", "unknown", "refused", "skipped"]
    """unknown: neither the file nor the caller says on which hardware. refused: it cannot be read as a job, or what it says is
    not modelled. skipped: it is no file of a job."""
    reason: str
    line: int
    """The line to point at, from 1 on: that of the first edit that would make it fit; 1 where there is none."""
    error: str | None
    """The kind of error for which it is refused: "unknown-key"."""
    total_bytes: int | None
    """What is needed of one GPU."""
    capacity_bytes: int | None
    would_fit_with: str
    """The edits that make it fit, in the file's own keys; empty where none is needed or known."""


class Checked(WholeAnswer):
    """Whether the jobs of several files fit."""

    fits: bool | None
    """Whether all do that are files of jobs; null where of one it cannot be said, and none does not fit."""
    files: list[CheckedFile]
    versions: Versions

    @property
    def exit_code(self) -> int:
        """0: all fit. 1: one does not. 2: of one it cannot be said, and all others fit."""
        return CANNOT_SAY if self.fits is None else int(not self.fits)


def check_files(paths: Iterable[str | Path], on: str | None = None, model: str | None = None) -> Checked:
    """Whether the jobs of these files fit: jobs, configurations, commands and scripts of frameworks.

    `on`: hardware such as 2x24GB, in place of what each file says. `model`: the model of files that name none. A file that cannot
    be read, or whose job is not modelled, is a row of its own and stops no other; raises nothing for what a file says, and
    `InvalidJob` and `UnknownName` for hardware that is none.
    """
    if on is not None:
        read_hardware(on)
    return _together([_checked(Path(path), on, model) for path in paths])


def check_texts(files: Mapping[str, str], on: str | None = None, model: str | None = None) -> Checked:
    """The same of texts by the names of their files; nothing is read beside them."""
    if on is not None:
        read_hardware(on)
    return _together([_of_text(Path(name), text, on, model) for name, text in files.items()])


def _together(files: list[CheckedFile]) -> Checked:
    verdicts = {file.verdict for file in files}
    fits = False if "does not fit" in verdicts else None if verdicts & {"unknown", "refused"} else True
    return Checked(fits=fits, files=files, versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION))


def _checked(path: Path, on: str | None, model: str | None) -> CheckedFile:
    if not path.is_file():
        return _row(path, "refused", f"{path}: is no file, or cannot be read", error=Unreadable.code)
    try:
        if not is_configuration(path):
            return _row(path, "skipped", NO_JOB)
        return _found(path, fix_file(path, on, model))
    except WillItFitError as error:
        return _refused(path, error, _names_no_model(path))


def _of_text(name: Path, text: str, on: str | None, model: str | None) -> CheckedFile:
    try:
        return _found(name, fix(text.encode("utf-8", "replace"), on, model))
    except WillItFitError as error:
        return _refused(name, error, "model" not in text.lower())


def _refused(path: Path, error: WillItFitError, no_model: bool) -> CheckedFile:
    """What is no job is skipped, and so is what cannot be read and names no model."""
    if isinstance(error, NoJob):
        return _row(path, "skipped", NO_JOB)
    if isinstance(error, Unreadable) and no_model:
        return _row(path, "skipped", f"names no model, and cannot be read: {error.message}")
    return _row(path, "refused", str(error), error=error.code)


def _found(path: Path, found: Fixes) -> CheckedFile:
    verdict: Literal["fits", "does not fit", "unknown"]
    verdict = "unknown" if found.fits is None else "fits" if found.fits else "does not fit"
    return _row(path, verdict, found.reason if found.capacity_bytes else NO_HARDWARE, found=found)


def _names_no_model(path: Path) -> bool:
    """Whether a file is nobody's job, as it seems, though it cannot be read: a template, or JSON with comments."""
    with suppress(OSError):
        return b"model" not in path.read_bytes().lower()
    return False


def _row(
    path: Path,
    verdict: Literal["fits", "does not fit", "unknown", "refused", "skipped"],
    reason: str,
    error: str | None = None,
    found: Fixes | None = None,
) -> CheckedFile:
    edits = _edits(found.fixes[0]) if found and found.fixes else []
    return CheckedFile(
        path=path.as_posix(),
        framework=found.framework if found else None,
        verdict=verdict,
        reason=reason,
        line=next((edit.line for edit in edits if edit.line), 1),
        error=error,
        total_bytes=found.total_bytes if found else None,
        capacity_bytes=found.capacity_bytes if found else None,
        would_fit_with=", ".join(edit.setting for edit in edits),
    )


def _edits(fix: Fix) -> list[Edit]:
    return [edit for change in fix.changes for edit in change.edits]
