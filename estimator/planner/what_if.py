"""What if: a job estimated with every combination of some values of some of its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from estimator.contract.answer import Versions
from estimator.contract.errors import InvalidValue, NotModelled, WillItFitError
from estimator.contract.job import Hardware, Job
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange.documents import job_of
from estimator.facts.spelling import shown
from estimator.pipeline.estimation import judged_and_timed
from estimator.pipeline.verdict import offered
from estimator.planner.numbers import tensor_follows, with_values
from estimator.planner.ranges import MOST, values
from estimator.planner.what_if_answer import WhatIf, WhatIfRow
from estimator.specs.resolve import resolve

Watch = Callable[[int], None]
"""Told how many combinations have been estimated."""


def what_if(
    job: Job | Mapping[str, Any] | str | Path,
    changes: Mapping[str, str | Iterable[Any]],
    *,
    on: str | Hardware | None = None,
    most: int = MOST,
    allow_files: bool = True,
    watch: Watch = lambda done: None,
) -> WhatIf:
    """A job with every combination of values of some fields, the last field's changing fastest.

    `job`: as `estimate` takes it, or the path of a framework's file. `changes`: by a field's dotted name its values, as a list or
    as text: "1k..128k" doubles, "8..64:8" goes in steps, "fsdp2,zero3" is a list; `hardware` takes phrases such as 2x24GB. `on`:
    hardware in place of the job's own. `most`: combinations beyond which it is refused. Combinations that do not go together are
    rows that say why. An interrupt ends it and keeps what was done. Raises `InvalidJob` for fields and values that are none, and
    `UnknownName`.
    """
    given = job_of(job, on)
    if not changes:
        raise InvalidValue("say what to change, such as training.sequence_length=1k..128k", "changes")
    model = "" if "model" in changes else resolve(given.model, allow_files).name
    asked = [values(given, field, text) for field, text in changes.items()]
    count = prod(len(one.taken) for one in asked)
    if count > most:
        raise InvalidValue(f"these are {count:,} combinations, more than {most:,}: ask about fewer values", "changes")
    fields, rows, complete = [one.field for one in asked], [], True
    both = [list(zip(one.shown, one.taken, strict=True)) for one in asked]
    try:
        for combination in product(*both):
            said = {name: said for name, (said, _) in zip(fields, combination, strict=True)}
            taken = {name: value for name, (_, value) in zip(fields, combination, strict=True)}
            rows.append(_row(with_values(given, taken), said, allow_files))
            watch(len(rows))
    except KeyboardInterrupt:
        complete = False
    follows = tensor_follows(given) and {"hardware", "hardware.gpus"} & {*fields} and "parallelism.tensor" not in fields
    return WhatIf(
        model=model,
        fields=fields,
        rows=rows,
        asked=count,
        complete=complete,
        assumptions=["each layer is split over all GPUs of a node: the job does not say otherwise"] if follows else [],
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def read_changes(texts: Iterable[str]) -> dict[str, str]:
    """Fields and their values from texts such as training.sequence_length=1k..128k. Raises `InvalidValue`."""
    changes: dict[str, str] = {}
    for text in texts:
        name, sign, asked = text.partition("=")
        if not sign or not name.strip():
            raise InvalidValue(f"{shown(text)} is no FIELD=VALUES: write training.sequence_length=1k..128k", "changes")
        if name.strip() in changes:
            raise InvalidValue("is there twice: write all its values once, with commas between", name.strip())
        changes[name.strip()] = asked
    return changes


def _row(job: Mapping[str, Any], said: Mapping[str, Any], allow_files: bool) -> WhatIfRow:
    try:
        found, time = judged_and_timed(job, allow_files)
    except WillItFitError as error:
        nothing = dict.fromkeys(
            ("total_bytes", "peak_bytes", "headroom_bytes", "offered_bytes", "step_seconds", "tokens_per_second", "job")
        )
        unknown = isinstance(error, NotModelled)
        return WhatIfRow(
            values=dict(said),
            fits=None,
            verdict="not modelled" if unknown else "refused",
            peak_phase="",
            reason=str(error),
            **nothing,
        )
    memory, verdict = found.memory, found.verdict
    room = offered(memory.capacity_bytes, found.job)
    return WhatIfRow(
        values=dict(said),
        fits=verdict.fits,
        verdict=verdict.verdict,
        total_bytes=memory.total_bytes,
        peak_bytes=memory.peak_bytes,
        peak_phase=memory.peak_phase,
        headroom_bytes=None if room is None else room - memory.total_bytes,
        offered_bytes=room,
        step_seconds=None if time is None else time.step_seconds,
        tokens_per_second=None if time is None else time.tokens_per_second,
        reason=verdict.reason,
        job=found.job.model_dump(mode="json", exclude_defaults=True),
    )
