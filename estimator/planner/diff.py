"""What differs between two jobs, or two files: settings after defaults, memory by part, seconds by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from estimator.contract.answer import Answer, Versions
from estimator.contract.errors import InvalidJob, Unreadable
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange import Surroundings, read, read_file
from estimator.exchange.documents import answer
from estimator.exchange.found import Found
from estimator.hardware.parse import read_hardware
from estimator.planner.answers import BytesDifference, Differences, SecondsDifference, SettingDifference, Side


def diff_files(a: str | Path, b: str | Path, on: str | None = None, model: str | None = None) -> Differences:
    """What differs between two files on disk: of frameworks, commands, or jobs.

    `on`: hardware such as 2xA100-80GB for both, in place of their own. `model`: the model, where a file names none. Raises what
    reading and estimating each of them raise.
    """
    return _differences(*(read_file(path, on, model) for path in (a, b)), allow_files=True)


def diff(given: Any, on: str | None = None, model: str | None = None) -> Differences:
    """The same for {"a": …, "b": …}, each a job as a mapping or the text of a file; nothing is read beside them."""
    if not isinstance(given, Mapping) or set(given) != {"a", "b"}:
        raise InvalidJob('send {"a": …, "b": …}, each a job or the text of a file', "request body")
    around = Surroundings(hardware=read_hardware(on).hardware if on else None)
    return _differences(*(_found(given[name], name, around, model) for name in ("a", "b")), allow_files=False)


def _found(given: Any, name: str, around: Surroundings, model: str | None) -> Found:
    if isinstance(given, str):
        return read(given, model=model, around=around)
    if not isinstance(given, Mapping):
        raise Unreadable("is neither a job nor the text of a file", name)
    job = dict(given)
    if around.hardware is not None:
        job["hardware"] = around.hardware.model_dump(mode="json", exclude_unset=True, exclude_defaults=True)
    return Found(framework="willitfit", version=SOFTWARE_VERSION, job=job)


def _differences(a: Found, b: Found, *, allow_files: bool) -> Differences:
    one, other = (answer(found, allow_files) for found in (a, b))
    return Differences(
        a=_side(a, one, other),
        b=_side(b, other, one),
        settings=list(_settings(one, other)),
        memory=[BytesDifference(name=name, a_bytes=x, b_bytes=y) for name, x, y in _unequal(_bytes(one), _bytes(other))],
        seconds=[SecondsDifference(name=name, a_seconds=x, b_seconds=y) for name, x, y in _unequal(*_seconds(one, other))],
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def _side(found: Found, said: Answer, other: Answer) -> Side:
    known = {note.text for note in other.notes}
    return Side(
        framework=found.framework,
        version=found.version,
        fits=said.fits,
        verdict=said.verdict,
        total_bytes=said.memory.total_bytes,
        peak_bytes=said.memory.peak_bytes,
        peak_phase=said.memory.peak_phase,
        tokens_per_second=said.time.tokens_per_second if said.time and said.job["task"] == "train" else None,
        said=[note.text for note in said.notes if note.kind not in ("default", "suggestion") and note.text not in known],
    )


def _settings(one: Answer, other: Answer) -> Iterator[SettingDifference]:
    """Fields with unequal values, in the order of a job; of what only one task has, those of the other are left out."""
    a, b = dict(_flat(one.job)), dict(_flat(other.job))
    why_a, why_b = _reasons(one), _reasons(other)
    served = {one.job["task"], other.job["task"]}
    for field in dict.fromkeys([*a, *b]):
        part = field.partition(".")[0]
        if (part == "serving" and "serve" not in served) or (part == "training" and "train" not in served):
            continue
        if a.get(field) != b.get(field):
            yield SettingDifference(
                field=field, a=a.get(field), b=b.get(field), why_a=why_a.get(field, ""), why_b=why_b.get(field, "")
            )


def _reasons(said: Answer) -> dict[str, str]:
    """Why each field's default is what it is; of one that has no reason of its own, that it is a default."""
    defaults = ((note.about, note.text.partition(" (")[2]) for note in said.notes if note.kind == "default" and note.about)
    return {field: why.removesuffix(")") or "default" for field, why in defaults}


def _flat(part: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in part.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _bytes(said: Answer) -> dict[str, int]:
    """What one GPU needs: what is alive at the peak by part, and what lies outside torch's tensors."""
    return {**said.memory.at_peak, **said.memory.overhead}


def _seconds(one: Answer, other: Answer) -> tuple[dict[str, float], dict[str, float]]:
    """The parts of both steps' times; none unless both are known."""
    if one.time is None or other.time is None:
        return {}, {}
    return {part.name: part.seconds for part in one.time.parts}, {part.name: part.seconds for part in other.time.parts}


def _unequal(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    rows = [(name, a.get(name, 0), b.get(name, 0)) for name in dict.fromkeys([*a, *b]) if a.get(name, 0) != b.get(name, 0)]
    return sorted(rows, key=lambda row: -abs(row[1] - row[2]))
