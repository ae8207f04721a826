"""A measured record explained: lined up with the job, then with the job as it may have run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from estimator.contract.answer import Versions
from estimator.contract.errors import WillItFitError
from estimator.contract.job import Job
from estimator.contract.units import gib
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange.documents import job_of
from estimator.measured.answers import Explanation, Hypothesis
from estimator.measured.compare import Compared, compare
from estimator.measured.hypotheses import Reason, by_size, reasons
from estimator.measured.of_record import of_another_card, refused, said_by_record, too_large
from estimator.measured.oom import KIND as FAILED
from estimator.measured.read import read_file, read_measured
from estimator.measured.record import QUANTITIES, Record
from estimator.pipeline.advice import Trial, advice
from estimator.pipeline.judged import judge_run
from estimator.pipeline.run import Run, played
from estimator.timelines.timeline import recorded

WORTH = 0.05
"""Share of the difference that a reason removes at least, to be named."""
NAMED = 6
"""Reasons that are named, the best."""
MOSTLY = 0.5
ROOTS = "_foreach_sqrt"
"""The temporaries of Adam's foreach implementation."""
Change = dict[str, Any]


def explain(
    job: Job | Mapping[str, Any] | str | Path,
    measured: str | bytes | Path,
    *,
    on: str | None = None,
    allow_files: bool = True,
) -> Explanation:
    """Line up what was measured with what is predicted, and say what would explain the difference.

    `job`: as `estimate` takes it, or the path of a framework's file. `measured`: a path of a record, its text, or the bytes of a
    memory snapshot, of which nothing is run. `on`: hardware such as 2xA100-80GB, in place of the job's own. Raises what
    `estimate` raises of the job, and `Unreadable` for a record without a figure of memory.
    """
    record = read_file(measured) if isinstance(measured, Path) else read_measured(measured)
    given = job_of(job, on)
    asked = given.model_dump(exclude_unset=True)
    run = played(given, allow_files)
    found = compare(run, record)
    hypotheses = [] if found.same else list(_hypotheses(found, record, asked, allow_files))
    said = list(refused(found, record))
    large = list(too_large(found, record))
    as_it_ran = [] if large else list(_too_large_as_it_ran(hypotheses, record, asked, allow_files))
    ranked = sorted([*large, *said, *hypotheses, *said_by_record(found, record)], key=_rank)
    ranked = [*ranked[: NAMED - len(as_it_ran)], *as_it_ran]  # what follows from a reason comes after all of them
    verdict = _verdict(found, ranked)
    return Explanation(
        kind=record.kind,
        verdict=verdict,
        text=(said[0].text if said else _text(found, record, verdict, ranked)) + of_another_card(found, record),
        compared=found.quantity,
        difference_bytes=found.difference_bytes,
        rows=list(found.rows),
        requested_bytes=record.amounts["requested"].bytes if "requested" in record.amounts else None,
        culprit=found.culprit,
        sizes=list(found.sizes),
        hypotheses=ranked,
        changes=_changes(record, _as_it_ran(asked, ranked), allow_files) if record.kind == FAILED else [],
        job=run.job.model_dump(mode="json"),
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def _rank(one: Hypothesis) -> tuple[bool, float]:
    """Reasons that explain all come first, the likelier before (their own order); then by what they remove."""
    return not one.explains, 0.0 if one.explains else -one.removed


def _changed(asked: Change, change: Mapping[str, Any]) -> Change:
    """A job with settings of some of its parts changed."""
    return {**asked, **{part: {**(asked.get(part) or {}), **settings} for part, settings in change.items()}}


def _as_it_ran(asked: Change, ranked: list[Hypothesis]) -> Change:
    """The job with the setting that explains the record, if one does."""
    best = next((one for one in ranked if one.explains), None)
    return _changed(asked, best.change) if best else asked


def _hypotheses(found: Compared, record: Record, asked: Change, allow_files: bool) -> Iterator[Hypothesis]:
    """Each reason tried: an estimate with that setting."""
    for reason in [*reasons(found.run.job), *by_size(found, record)]:
        try:
            tried = compare(played(_changed(asked, reason.change), allow_files), record, found.quantity)
        except WillItFitError:  # the job does not go with that setting
            continue
        if one := _tried(reason, tried, found, record):
            yield one
    yield from _older_foreach(found, record)
    weights = found.memory.at_peak.get("parameters", 0)
    if weights:
        said = f"a second model: its {gib(weights)} of parameters once more"
        tried = compare(found.run, record, found.quantity, weights)
        if one := _tried(Reason("second-model", said, {}), tried, found, record):
            yield one
    if pools := record.amounts.get("pools"):
        said = f"pools of their own, as CUDA graphs have: {gib(pools.bytes)}"
        tried = compare(found.run, record, found.quantity, pools.bytes)
        if one := _tried(Reason("graph-pool", said, {}), tried, found, record):
            yield one


def _too_large_as_it_ran(hypotheses: list[Hypothesis], record: Record, asked: Change, allow_files: bool) -> Iterator[Hypothesis]:
    """Where the job would fit as it is written, but ran in a way that explains the record and needs more than the card has."""
    for one in hypotheses:
        if one.explains and one.change:
            tried = compare(played(_changed(asked, one.change), allow_files), record)
            yield from too_large(tried, record, f"the job as it ran ({one.text})")
            return


def _older_foreach(found: Compared, record: Record) -> Iterator[Hypothesis]:
    """Until torch 2.1 Adam and AdamW made two lists of temporaries, roots and then denominators, where one is made now
    (https://github.com/pytorch/pytorch/issues/97712): the second one, of the same sizes, grows where the first is held whole."""
    asked = found.run.job.training
    requested = "requested" in record.amounts
    if not requested or asked.optimizer not in ("adam", "adamw") or asked.optimizer_implementation != "foreach":
        return
    course = recorded(found.run).course
    roots = [one.storage for one in course.births if course.tape.operations[one.storage] == ROOTS]
    first = sum(course.tape.sizes[storage] for storage in roots)
    tried = compare(found.run, record, found.quantity, first)
    if tried.culprit is None or tried.culprit.operation != ROOTS:
        return
    said = f"a torch before 2.1, whose foreach optimizer holds two lists of temporaries: {gib(first)} more"
    if one := _tried(Reason("optimizer", said, {}), tried, found, record):
        yield one


def _tried(reason: Reason, tried: Compared, found: Compared, record: Record) -> Hypothesis | None:
    """What a reason removes of the difference; where the job has no such allocation, all that was allocated is unexplained."""
    if tried.difference_bytes is None:
        return None
    level = record.amounts.get("allocated") or record.amounts.get("requested")
    whole = found.difference_bytes if found.difference_bytes is not None else level.bytes if level else 0
    removed = 1 - abs(tried.difference_bytes) / abs(whole) if whole else 0.0
    if removed < WORTH:
        return None
    return Hypothesis(
        slug=reason.slug,
        text=reason.text,
        change=reason.change,
        predicted_bytes=tried.predicted_bytes,
        difference_bytes=tried.difference_bytes,
        removed=round(removed, 4),
        explains=tried.same,
        culprit=tried.culprit,
    )


Verdict = Literal["as predicted", "explained", "partly explained", "not explained"]


def _verdict(found: Compared, ranked: list[Hypothesis]) -> Verdict:
    if found.same:
        return "as predicted"
    if any(one.explains for one in ranked):
        return "explained"
    return "partly explained" if any(one.removed >= MOSTLY for one in ranked) else "not explained"


def _text(found: Compared, record: Record, verdict: str, ranked: list[Hypothesis]) -> str:
    """What was found, in a sentence or two."""
    requested, level = record.amounts.get("requested"), record.amounts.get("allocated")
    said = []
    if requested is not None and found.culprit is not None:
        one = found.culprit
        many = f", one of {one.count} such" if one.count > 1 else ""
        step = {"load": "while the model is loaded", "first": "in the first step", "later": "in a step after the first"}[one.step]
        said.append(
            f"{gib(requested.bytes)} is {one.name} ({one.component.replace('_', ' ')}, {gib(one.bytes)}{many}), "
            f"in {one.phase.replace('_', ' ')}, {step}, where {gib(one.allocated_bytes)} are allocated"
        )
    elif requested is not None:
        said.append(f"this job has no allocation of {gib(requested.bytes)}")
    if level is not None and requested is not None and found.culprit is not None and not found.same:
        said.append(f"the message says {gib(level.bytes)}, {gib(abs(found.difference_bytes or 0))} from that")
    if requested is None and found.difference_bytes is not None:
        name, more = QUANTITIES.get(found.quantity, found.quantity), found.difference_bytes > 0
        much = f"{gib(abs(found.difference_bytes))} {'more' if more else 'less'} than predicted"
        said.append(f"{name}: as predicted" if found.same else f"{name}: {much}")
    elif requested is None:
        said.append(f"{QUANTITIES.get(found.quantity, found.quantity)}: this job has no such figure")
    if verdict != "as predicted":
        fitting = [one.text for one in ranked if one.explains == (verdict == "explained")][: NAMED // 2]
        said.append(verdict if verdict == "not explained" else f"{verdict} by: {'; or '.join(fitting)}")
    return "; ".join(said)


def _changes(record: Record, asked: Change, allow_files: bool) -> list[str]:
    """What would avoid it on a GPU of the message's capacity, less what others hold there: settings that were tried."""
    run = played(asked, allow_files)
    capacity = record.amounts.get("allowed") or record.amounts.get("capacity")
    if capacity is None:
        return []
    held = record.amounts["others"].bytes if "others" in record.amounts else 0
    room = capacity.bytes - held

    def judged_on_it(job: Change) -> Trial | None:
        try:
            tried = played(job, allow_files)
            found = judge_run(replace(tried, card=replace(tried.card, memory_bytes=room)))
        except WillItFitError:
            return None
        return Trial(found.memory.total_bytes, found.verdict.fits)

    memory = judge_run(replace(run, card=replace(run.card, memory_bytes=room))).memory
    if memory.total_bytes <= room:
        return [f"the job as it is written needs {gib(memory.total_bytes)} of {gib(room)}: it would fit"]
    said = [one.text for one in advice(run.job, memory, run.model.spec, lambda change: judged_on_it(_changed(asked, change)))]
    if run.job.task == "train":
        said = [*_smaller(run, asked, judged_on_it), *said]
    return said


def _smaller(run: Run, asked: Change, judged_on_it: Any) -> Iterator[str]:
    """The largest half, quarter, … of the batch, and of the sequence, with which it fits."""
    training = run.job.training
    for name, start in (("micro_batch_size", training.micro_batch_size), ("sequence_length", training.sequence_length)):
        value = (start or 0) // 2
        while value >= (1 if name == "micro_batch_size" else 128):
            trial = judged_on_it(_changed(asked, {"training": {name: value}}))
            if trial is None:
                break
            if trial.fits:
                yield f"training.{name} {value} would need {gib(trial.total_bytes)}: it fits"
                break
            value //= 2
