"""The smallest edits that make a file's job fit, in the file's own keys, as a patch (docs/fix.md)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from estimator.contract.answer import Versions
from estimator.contract.errors import NotModelled
from estimator.contract.units import gib
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange import Surroundings, read
from estimator.exchange.configuration import Framework, framework
from estimator.exchange.documents import surroundings, unnamed
from estimator.exchange.found import field_of
from estimator.exchange.patch import Original, original, read_original, replace, unified
from estimator.hardware.parse import read_hardware
from estimator.pipeline.judged import Judged, judged
from estimator.planner.answers import Change, Edit, Fix, Fixes
from estimator.planner.fix_search import File, Step, search_fixes, steps_of
from estimator.planner.moves import moves


def fix_file(
    path: str | Path, on: str | None = None, model: str | None = None, given: str | None = None, write: bool = False
) -> Fixes:
    """The smallest edits that make the job of a file on disk fit.

    `on`: hardware such as 2x24GB, in place of the file's own. `model`: the model, where the file names none. `given`: whose the
    file is; without it, it is told by what it says. `write`: the first fix is applied to the file, as a whole or not at all.
    Raises what reading the file and estimating its job raise; why a file cannot be edited is its `problem`.
    """
    where = Path(path)
    file = read_original(where)
    shown = os.path.relpath(where)
    found, text = _fixes(file, where.name if shown.startswith("..") else shown, given, model, surroundings(where, on))
    if write and text is not None:
        replace(where, file.data, file.with_text(text))
    return found


def fix(
    data: bytes, on: str | None = None, model: str | None = None, given: str | None = None, release: str | None = None
) -> Fixes:
    """The same for a file's bytes; nothing is read beside it. `release`: of its framework, whose defaults are taken."""
    around = Surroundings(hardware=read_hardware(on).hardware if on else None, release=release)
    return _fixes(original(data, "file"), "file", given, model, around)[0]


def _framework(name: str) -> Framework:
    """A framework's data; of a job of ours, whose keys are its fields, nothing else."""
    return Framework(framework=name, release="", source="", as_of="") if name == "willitfit" else framework(name)


def _fixes(file: Original, name: str, given: str | None, model: str | None, around: Surroundings) -> tuple[Fixes, str | None]:
    """The fixes, and the text that the first of them makes of the file."""
    found = read(file.text, given, model=model, around=around)
    if not found.job.get("model"):
        raise unnamed(found)
    now = judged(found.job, around.allow_files)
    search = File(file.text, given, model, around, _framework(found.framework), found.framework)
    search.known[file.text, True], search.jobs[file.text] = now, found
    steps: list[list[Step]] = []
    problem = ""
    if now.verdict.fits is None:
        problem = "on what it is to fit is not known: say which GPU with --on"
    elif not now.verdict.fits:
        try:
            search.opened(file.text)
        except NotModelled as error:  # that it does not fit is known all the same
            problem = error.message
        else:
            steps = list(search_fixes(search, now))
            problem = "" if steps else _problem(search, now)
    read_as = f"read as a file of {found.framework} {found.version}".rstrip()
    answer = Fixes(
        framework=found.framework,
        version=found.version,
        fits=now.verdict.fits,
        reason=now.verdict.reason,
        total_bytes=now.memory.total_bytes,
        capacity_bytes=now.memory.capacity_bytes,
        fixes=[_fix(search, file, name, each) for each in steps],
        problem=problem,
        assumptions=[read_as, *(f"{found.framework}: {one}" for one in found.assumed)],
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )
    return answer, search.edited(steps[0]) if steps else None


def _problem(search: File, now: Judged) -> str:
    tried = [next(iter(step.settings)) for move in moves(now.job) for step in steps_of(search, move, now)]
    if not tried:
        return f"none of the settings that could help are known by a key of {search.whose}"
    least = min(one.memory.total_bytes for one in search.known.values() if one is not None)
    return (
        f"{', '.join(dict.fromkeys(tried))}: tried alone and together, none is enough; least is {gib(least)}. It takes more "
        "GPUs, or larger ones"
    )


def _fix(search: File, file: Original, name: str, steps: Sequence[Step]) -> Fix:
    """A fix with what each of its changes saves, in their order, and costs."""
    changes = []
    document = search.opened(search.text)
    first = before = search.text
    for index, step in enumerate(steps):
        after = search.edited(steps[: index + 1]) or before
        edits = []
        for key, value in step.settings.items():
            place = document.place(key)
            if place.value != value and not (value is False and place.value is None):
                edits.append(Edit(key=place.key, line=place.line, before=place.value, after=value))
        changes.append(
            Change(
                field=step.move.field,
                edits=edits,
                same_result=step.move.same_result and _sequences(search, after) >= _sequences(search, before),
                saved_bytes=search.total(before, True) - search.total(after, True),
                slower=_slower(search, before, after),
            )
        )
        before = after
    found = search.judged(before)
    assert found is not None
    verdict: Any = found.verdict.verdict
    return Fix(
        changes=changes,
        same_result=all(one.same_result for one in changes),
        verdict=verdict,
        reason=found.verdict.reason,
        total_bytes=found.memory.total_bytes,
        slower=_slower(search, first, before),
        patch=unified(name, file.data.decode("utf-8"), file.with_text(before).decode("utf-8")),
    )


def _sequences(search: File, text: str) -> int:
    """Sequences between two steps of the optimizer on each GPU: fewer are another training."""
    found = search.jobs.get(text)
    job = found.job if found else {}
    rows, steps = (field_of(job, f"training.{name}") or 1 for name in ("micro_batch_size", "gradient_accumulation_steps"))
    return int(rows) * int(steps)


def _slower(search: File, before: str, after: str) -> float | None:
    then, now = search.seconds(before), search.seconds(after)
    return None if then is None or now is None else now / then - 1
