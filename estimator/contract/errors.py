"""What can go wrong, as exceptions with a stable slug, and a code that says more; docs/errors.md has a paragraph for each.

WillItFitError
├── InvalidJob               a job, option or file that cannot be read as asked    (CLI exit 2, HTTP 422)
│   ├── UnknownKey, InvalidValue, Unreadable, NoJob, Contradiction
├── NotModelled              a valid request that this version has no model for    (CLI exit 2, HTTP 422)
│   ├── UnknownArchitecture, NotJudged
├── UnknownName              a model or accelerator that no catalogue has          (CLI exit 3, HTTP 404)
│   ├── UnknownModel, UnknownHardware
└── UnsupportedInterpreter   a Python on which answers would be wrong              (CLI exit 2, HTTP 501)
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class WillItFitError(Exception):
    """Base of all errors that are the caller's to mend: says what was wrong, where, and what to write instead.

    `where`: the field, file or option that it is about; empty where that is all of what was asked.
    """

    slug = "error"
    """What kind of error it is, by which exit codes and HTTP's status go."""
    code = "error"
    """Which of its kind: a program can tell by it what to do."""
    exit_code = 2
    status = 422

    def __init__(self, message: str, where: str = ""):
        self.where = where
        self.message = message
        super().__init__(f"{where}: {message}" if where else message)


class InvalidJob(WillItFitError):
    """The job, or something that it names, is not what it should be."""

    slug = code = "invalid-job"


class UnknownKey(InvalidJob):
    """A key that nothing reads: misspelt, or of another part of the job. The nearest known ones are given."""

    code = "unknown-key"


class InvalidValue(InvalidJob):
    """A value of the wrong kind, out of its range, or in words that are not understood."""

    code = "invalid-value"


class Unreadable(InvalidJob):
    """A file that is not there, cannot be read, or is broken."""

    code = "unreadable"


class NoJob(InvalidJob):
    """A file that trains or serves no model, as far as is known here: a gate passes it over."""

    code = "no-job"


class Contradiction(InvalidJob):
    """Settings that do not go together, or that the model or the framework does not have."""

    code = "contradiction"


class NotModelled(WillItFitError):
    """A combination that frameworks allow but this version has no model for: better no answer than a wrong one."""

    slug = code = "not-modelled"


class UnknownArchitecture(NotModelled):
    """A model of a kind that has no family here yet."""

    code = "unknown-architecture"


class NotJudged(NotModelled):
    """A job that torch cannot be asked about without a GPU: it may be answered, but not verified."""

    code = "not-judged"


class UnknownName(WillItFitError):
    """A model or an accelerator that is in no catalogue."""

    slug = code = "unknown-name"
    exit_code = 3
    status = 404


class UnknownModel(UnknownName):
    """A model that is in no catalogue, in no folder and on no hub that was asked."""

    code = "unknown-model"


class UnknownHardware(UnknownName):
    """An accelerator or a node that is in no catalogue."""

    code = "unknown-hardware"


class UnsupportedInterpreter(WillItFitError):
    """A Python that answers would be wrong on, because its objects do not die with their last reference."""

    slug = code = "unsupported-interpreter"
    status = 501


def near_names(name: str, known: Iterable[str], most: int, cutoff: float) -> list[str]:
    """The known names that are most like a name; those that begin with it come first."""
    return sorted(get_close_matches(name, known, n=most, cutoff=cutoff), key=lambda one: not one.startswith(name))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' Did you mean …?' with the nearest known names, or nothing."""
    close = near_names(name.lower(), {k.lower(): k for k in known}, 3, 0.55)
    return f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
