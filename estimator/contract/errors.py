"""What can go wrong, as exceptions with a stable slug; docs/errors.md has a paragraph for each.

WillItFitError
├── InvalidJob               a job, option or file that cannot be read as asked    (CLI exit 2, HTTP 422)
├── NotModelled              a valid request that this version has no model for    (CLI exit 2, HTTP 422)
├── UnknownName              a model or accelerator that no catalogue has          (CLI exit 3, HTTP 404)
└── UnsupportedInterpreter   a Python on which answers would be wrong              (CLI exit 2, HTTP 501)
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class WillItFitError(Exception):
    """Base of all errors that are the caller's to mend: says what was wrong, where, and what to write instead."""

    slug = "error"
    exit_code = 2
    status = 422

    def __init__(self, message: str, where: str = ""):
        self.where = where
        self.message = message
        super().__init__(f"{where}: {message}" if where else message)


class InvalidJob(WillItFitError):
    """The job, or something that it names, is not what it should be."""

    slug = "invalid-job"


class NotModelled(WillItFitError):
    """A combination that frameworks allow but this version has no model for: better no answer than a wrong one."""

    slug = "not-modelled"


class UnknownName(WillItFitError):
    """A model or an accelerator that is in no catalogue."""

    slug = "unknown-name"
    exit_code = 3
    status = 404


class UnsupportedInterpreter(WillItFitError):
    """A Python that answers would be wrong on, because its objects do not die with their last reference."""

    slug = "unsupported-interpreter"
    status = 501


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' Did you mean …?' with the nearest known names, or nothing."""
    close = get_close_matches(name.lower(), {k.lower(): k for k in known}, n=3, cutoff=0.55)
    return f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
