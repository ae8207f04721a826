"""How much of a model llama.cpp has to leave in the host's memory for it to fit."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from estimator.contract.job import Hardware, Serving
from estimator.contract.units import gib
from estimator.pipeline.judged import Judged
from estimator.planner.spreads import Question, spreads
from estimator.planner.ways import Way
from estimator.serving.llamacpp.engine import LLAMA_CPP


def partly(question: Question, way: Way, hardware: Hardware) -> tuple[str, dict[str, Any]] | None:
    """The setting that leaves least in the host's memory, with the bytes there, and the job with it: experts first, then whole
    layers. None where none fits, also for want of the host's RAM where that is given."""
    for name, values in LLAMA_CPP.fitting(Serving.model_validate(way.settings), question.found.spec):
        found: dict[int, tuple[dict[str, Any], Judged]] = {}

        def enough(value: int, name: str = name, found: dict[int, tuple[dict[str, Any], Judged]] = found) -> bool:
            ((_, job),) = spreads(question, way.changed(**{name: value}), hardware)
            found[value] = job, question.ask(job)
            verdict = found[value][1].verdict
            return bool(verdict.fits) or verdict.host  # which more in the host's memory does not mend

        at = bisect_left(values, True, key=enough)
        if at == len(values):
            continue
        job, answer = found[values[at]]
        if answer.verdict.fits:
            held = gib(sum(answer.memory.host_bytes.values()))
            return f"{name} {values[at]}, with {held} in the host's memory", job
    return None
