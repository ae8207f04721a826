"""What becomes of a job: equal to its judge, refused, not judged, or a finding."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Any, Literal

from estimator import Answer, Job, NotModelled, WillItFitError, estimate
from estimator.families.spec import DecoderSpec
from estimator.specs.resolve import resolve
from estimator.verify.step import fake_step
from tests.jobs import counts
from tests.judge.serving import fake_serving

Kind = Literal["equal", "refused", "not judged", "finding"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`why`: what refused it, why it is not judged, or what kind of finding it is. `where`: the field that is named."""

    kind: Kind
    why: str = ""
    where: str = ""
    detail: str = ""
    counted: dict[str, int] = field(default_factory=dict)


def outcome(asked: dict[str, Any]) -> Outcome:
    """Estimate a job and ask its judge."""
    found = estimated(asked)
    return found if isinstance(found, Outcome) else judged(found)


def estimated(asked: dict[str, Any]) -> Answer | Outcome:
    """The answer to a job; else why there is none."""
    try:
        answer = estimate(asked)
        Job.model_validate(answer.job)
    except WillItFitError as refused:
        where = refused.where or refused.message.partition(":")[0]
        return Outcome("refused", f"{refused.slug} {where}", where, refused.message)
    except Exception as error:
        return _crash("estimate", error)
    return answer


def judged(answer: Answer) -> Outcome:
    """Ask the judge about an answer's job, in which every default is filled in."""
    job = Job.model_validate(answer.job)
    try:
        counted = ask(job)
    except WillItFitError as unplayed:
        return Outcome("not judged", unplayed.message, unplayed.where)
    except Exception as error:
        return _crash("judge", error)
    memory = answer.memory
    if job.task == "serve":
        predicted = {"resident": memory.resident_bytes, **memory.phases}
    else:
        predicted = counts(answer)
    differing = [name for name in counted if predicted.get(name) != counted[name]]
    if not differing and predicted.keys() == counted.keys():
        return Outcome("equal", counted=counted)
    said = ", ".join(f"{name} {predicted.get(name)} for {counted[name]}" for name in differing)
    missing_ones = predicted.keys() - counted.keys()
    where = differing[0] if differing else ", ".join(sorted(missing_ones))
    return Outcome("finding", f"difference: {where}", detail=said or f"not counted: {where}", counted=counted)


def ask(job: Job) -> dict[str, int]:
    """What the judge of a settled job counts."""
    spec = resolve(job.model).spec
    if job.task == "serve":
        if not isinstance(spec, DecoderSpec):
            raise NotModelled("the judge of serving plays decoders", "model")
        return fake_serving(job, spec)
    return fake_step(job, spec)


def _crash(who: str, error: Exception) -> Outcome:
    """An exception that is none of ours, by its type and the last place of our own that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/estimator/" in frame.filename] or frames
    place = f"{ours[-1].filename.rpartition('/')[2]} {ours[-1].name}"
    last = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno} {frames[-1].name}"
    text = f"{type(error).__name__}: {error} (at {last})"
    return Outcome("finding", f"{who}: {type(error).__name__} in {place}", detail=text[:1500])
