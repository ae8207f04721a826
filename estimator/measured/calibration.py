"""The constants of one's own machine, from the records that it wrote: each fitted to some, and tried on others.

A record says what a step took, T, and the estimate of its job what that goes to: kernels K, with what is between them, exchanges
X and the rest R, which the host takes. Over the records

    kernels = median((T - R - X) / K)                    of those in which exchanges are less than 3 % of the step
    exchanges: which of a row of factors has the median of the errors next to nothing, of the others
    context = median(used - reserved - communicators)    what is used of the GPU, as the driver counts it

Nothing that torch allocates is fitted, least of all a factor on the peak. Each constant is tried on the records of every model in
turn, with what was fitted to the other models' alone, and is kept where that is nearer than without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import log
from statistics import median
from typing import Any, NamedTuple

from estimator.contract.answer import Answer
from estimator.contract.units import MIB
from estimator.measured.calibration_answer import Constant, Errors
from estimator.pipeline.estimation import estimate
from estimator.timing.host import COPIES, ON_HOST
from estimator.timing.kernels import ATTENTION, MEMORY, PRODUCTS
from estimator.timing.passes import GAPS
from estimator.timing.step import BUBBLE, OPTIMIZER

COMPUTED = frozenset({PRODUCTS, ATTENTION, MEMORY, GAPS, OPTIMIZER, BUBBLE})
"""Parts of a step that are kernels' time."""
LEAST_RECORDS, LEAST_MODELS = 6, 2
TENTHS = 0.9
FACTORS = tuple(round(2 ** (step / 4), 3) for step in range(-8, 9))
"""Of the seconds of exchanges: a quarter to four times."""
FAR = "as far from what is reckoned as is tried: something else differs, left out"
SHARE = 0.03
"""Of a step, what exchanges take at least in a record that says how fast they are."""


LENGTHS = ("n_positions", "max_position_embeddings")
"""What models of one size may differ in."""


class Measured(NamedTuple):
    """A record: its job, whose model it is, and what was measured: seconds of a step, and bytes used and reserved of the GPU."""

    job: dict[str, Any]
    model: str
    seconds: float | None
    used_bytes: int | None
    reserved_bytes: int | None
    answer: Answer
    known: dict[str, float]
    """Seconds of a step with calibrations that were tried."""

    def parts(self) -> tuple[float, float, float]:
        """Seconds of kernels, of exchanges and of the rest, as they are reckoned."""
        assert self.answer.time
        found = {"kernels": 0.0, "exchanges": 0.0, "rest": 0.0}
        for part in self.answer.time.parts:
            among = part.name.endswith(")") and part.name not in (COPIES, ON_HOST)
            kind = "kernels" if part.name in COMPUTED else "exchanges" if among else "rest"
            found[kind] += part.seconds
        return found["kernels"], found["exchanges"], found["rest"]


def measured(job: Mapping[str, Any], seconds: float | None, used: int | None, reserved: int | None, files: bool) -> Measured:
    """A record with what is said of its job without any calibration. Raises what `estimate` raises."""
    plain = {name: part for name, part in job.items() if name != "calibration"}
    answer = estimate(plain, allow_files=files)
    model = plain["model"]
    same = {name: each for name, each in model.items() if name not in LENGTHS} if isinstance(model, dict) else model
    return Measured(plain, json.dumps(same, sort_keys=True), seconds, used, reserved, answer, {})


Fit = Callable[[Sequence[Measured], Mapping[str, Any]], Any]
Error = Callable[[Measured, Mapping[str, Any]], float]


def _kernels(rows: Sequence[Measured], known: Mapping[str, Any]) -> float | None:
    alone = [one for one in rows if one.seconds and one.answer.time and one.parts()[1] < SHARE * one.answer.time.step_seconds]
    found = []
    for one in alone:
        kernels, exchanges, rest = one.parts()
        found.append(((one.seconds or 0) - rest - exchanges) / kernels)
    return round(median(found), 3) if found else None


def _exchanges(rows: Sequence[Measured], known: Mapping[str, Any]) -> float | None:
    among = [one for one in rows if one.seconds and one.answer.time and one.parts()[1] >= SHARE * one.answer.time.step_seconds]
    if not among:
        return None

    def off(factor: float) -> tuple[float, float]:
        with_it = {"card": among[0].job["hardware"]["gpu"], **known, "exchanges": factor}
        return abs(median(_seconds(one, with_it) for one in among)), abs(log(factor))

    return min(FACTORS, key=off)


def _context(rows: Sequence[Measured], known: Mapping[str, Any]) -> str | None:
    found = []
    for one in rows:
        if one.used_bytes and one.reserved_bytes:
            groups = sum(size for name, size in one.answer.memory.overhead.items() if name.startswith("nccl"))
            found.append(one.used_bytes - one.reserved_bytes - groups)
    return f"{round(median(found) / MIB)}MiB" if found and median(found) > 0 else None


def _seconds(one: Measured, calibration: Mapping[str, Any]) -> float:
    """The error of a step's seconds."""
    asked = json.dumps(calibration, sort_keys=True)
    if asked not in one.known:
        answer = estimate({**one.job, "calibration": calibration})
        assert answer.time
        one.known[asked] = answer.time.step_seconds
    assert one.seconds
    return one.known[asked] / one.seconds - 1


def _outside(one: Measured, calibration: Mapping[str, Any]) -> float:
    """The error of what is used beside torch, as a share of what is used."""
    answer = estimate({**one.job, "calibration": calibration})
    assert one.used_bytes
    assert one.reserved_bytes
    outside = {name: size for name, size in answer.memory.overhead.items() if name == "cuda_context" or name.startswith("nccl")}
    return (one.reserved_bytes + sum(outside.values())) / one.used_bytes - 1


CONSTANTS: dict[str, tuple[Fit, Error, str]] = {
    "kernels": (_kernels, _seconds, "seconds of a step"),
    "exchanges": (_exchanges, _seconds, "seconds of a step"),
    "context": (_context, _outside, "bytes used"),
}
"""Each constant: how it is fitted, what its error is of, in this order; exchanges are what kernels leave."""


def constants(rows: Sequence[Measured], card: str) -> tuple[dict[str, Any], list[Constant]]:
    """The constants that held-out records bear out, and the verdict on each."""
    kept: dict[str, Any] = {}
    verdicts = []
    for name, (fit, error, of) in CONSTANTS.items():
        timed = of.startswith("seconds")
        usable = [one for one in rows if (one.seconds and one.answer.time if timed else one.used_bytes and one.reserved_bytes)]
        found = _verdict(name, usable, kept, card, (fit, error, of))
        verdicts.append(found)
        if found.kept:
            kept[name] = found.value
    return kept, verdicts


def _verdict(name: str, rows: Sequence[Measured], kept: Mapping[str, Any], card: str, how: tuple[Fit, Error, str]) -> Constant:
    fit, error, of = how
    value = fit(rows, kept)
    models = sorted({one.model for one in rows})
    if value is None:
        return Constant(name=name, of=of, value=None, kept=False, why="no record says anything of it", records=0, models=0)
    counts = {"records": len(rows), "models": len(models)}
    if len(rows) < LEAST_RECORDS or len(models) < LEAST_MODELS:
        given = f"these are {len(rows)} of {len(models)}"
        why = f"held out by model it takes {LEAST_RECORDS} records of {LEAST_MODELS} models, and {given}"
        return Constant(name=name, of=of, value=value, kept=False, why=why, **counts)
    if not _plausible(value):
        return Constant(name=name, of=of, value=value, kept=False, why=FAR, **counts)
    without, with_it = [], []
    for model in models:
        others = [one for one in rows if one.model != model]
        own = fit(others, kept)
        base = {"card": card, **kept}
        for one in rows:
            if one.model == model:
                without.append(error(one, base))
                with_it.append(error(one, {**base, name: own} if own is not None and _plausible(own) else base))
    before, after = _errors(without), _errors(with_it)
    better = after.median < before.median and after.nine_tenths <= before.nine_tenths
    why = "nearer on models that it was not fitted to" if better else "no nearer on models that it was not fitted to: left out"
    return Constant(name=name, of=of, value=value, kept=better, why=why, before=before, after=after, **counts)


def _plausible(value: float | str) -> bool:
    """Whether a factor is one that a machine may have, and not the end of what is tried."""
    return not isinstance(value, float) or FACTORS[0] < value < FACTORS[-1]


def _errors(found: Sequence[float]) -> Errors:
    sizes = sorted(abs(one) for one in found)
    return Errors(median=median(sizes), nine_tenths=sizes[min(len(sizes) - 1, int(TENTHS * len(sizes)))], worst=sizes[-1])
