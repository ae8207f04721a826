"""Answers that are remembered: the same question again is answered from them, as long as nothing can have changed it.

An answer depends on the job, on what else was asked, and on shipped facts. Where a model is named by a file, or the user has
specs or prices of their own, what is read may change from one question to the next, and nothing is remembered.
"""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from datetime import date
from threading import Lock
from typing import Any

from estimator.contract.answer import Answer
from estimator.contract.errors import WillItFitError
from estimator.contract.job import Job
from estimator.families.other import OtherSpec
from estimator.pricing import prices
from estimator.specs import published
from estimator.specs.resolve import resolve
from estimator.specs.teacher import other_models

MOST_BYTES = 16 << 20
"""Of all answers that are remembered, and their questions: about 800."""


class Answers:
    """Answers by question, as bytes, so that no two callers share one; those asked for longest ago are forgotten first. Threads
    may share it."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all that is remembered."""
        return self._bytes

    def of(self, question: bytes) -> Answer | None:
        """A copy of the answer to a question that is remembered."""
        with self._lock:
            packed = self._answers.get(question)
            if packed is None:
                return None
            self._answers.move_to_end(question)
        answer: Answer = pickle.loads(packed)
        return answer

    def add(self, question: bytes, answer: Answer) -> None:
        """Remember an answer."""
        packed = pickle.dumps(answer)
        with self._lock:
            self._bytes += len(question) + len(packed) - self._left_by(question)
            self._answers[question] = packed
            while self._bytes > self.most_bytes:
                self._bytes -= self._left_by(next(iter(self._answers)))

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._answers.clear()
            self._bytes = 0

    def _left_by(self, question: bytes) -> int:
        """Forget one answer, if it is there: the bytes that it took."""
        packed = self._answers.pop(question, None)
        return 0 if packed is None else len(question) + len(packed)


answers = Answers()


def question_of(job: Job, allow_files: bool, every_rank: bool, today: date) -> bytes | None:
    """All that an answer depends on besides shipped facts; None where it depends on more."""
    if _own_facts() or (allow_files and any(_folder(model) for model in (job.model, *other_models(job)))):
        return None
    try:
        return pickle.dumps((job, allow_files, every_rank, today))
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
        return None  # something within the model's mapping that no answer is given to


def settled(job: Job, allow_files: bool) -> bool:
    """Whether every model of a job means the same where no files may be read, and none is counted by what is installed."""
    return all(_settled(model, allow_files) for model in (job.model, *other_models(job)))


def _settled(model: str | Mapping[str, Any], allow_files: bool) -> bool:
    try:
        found = resolve(model, False)
        return not isinstance(found.spec, OtherSpec) and (not allow_files or found == resolve(model))
    except WillItFitError:
        return False


def _own_facts() -> bool:
    """Whether the user has specs or prices of their own."""
    named = os.environ.get(published.VARIABLE) or os.environ.get(prices.VARIABLE)
    return bool(named) or os.path.isdir(published.usual_folder()) or os.path.isfile(prices.own_file())


def _folder(model: str | Mapping[str, Any]) -> bool:
    """Whether a model is named as a folder that is there, which comes before a known model of that name."""
    return isinstance(model, str) and "/" in model and os.path.isdir(model.strip())
