"""How much of a model llama.cpp has to leave in the host's memory for it to fit."""

from __future__ import annotations

from functools import partial
from typing import Any

from estimator.contract.job import Hardware, Serving
from estimator.contract.units import gib
from estimator.pipeline.advice import Trial, first_that_fits
from estimator.planner.spreads import Question, spreads
from estimator.planner.ways import Way
from estimator.serving.llamacpp.engine import LLAMA_CPP


def partly(question: Question, way: Way, hardware: Hardware) -> tuple[str, dict[str, Any]] | None:
    """The setting that leaves least in the host's memory, with the bytes there, and the job with it: experts first, then whole
    layers. None where none fits, also for want of the host's RAM where that is given."""
    tried: dict[tuple[str, int], tuple[str, dict[str, Any]]] = {}

    def attempt(name: str, value: int) -> Trial:
        ((_, job),) = spreads(question, way.changed(**{name: value}), hardware)
        answer = question.ask(job)
        said = f"{name} {value}, with {gib(sum(answer.memory.host_bytes.values()))} in the host's memory"
        tried[name, value] = said, job
        return Trial(answer.memory.total_bytes, answer.verdict.fits, host=answer.verdict.host)

    for name, values in LLAMA_CPP.fitting(Serving.model_validate(way.settings), question.found.spec):
        if found := first_that_fits(values, partial(attempt, name)):
            return tried[name, found[0]]
    return None
