"""What bound a step was at, beside what is predicted, and what helps: each remedy that a job has a field for is an estimate.

With m the measured and p the predicted seconds of a bound, p' those of the changed job, and t, t' the tokens of a step, a change
makes a token's time

    1 - (sum of m · p' / p) / (sum of m) · t / t'

shorter; a bound of which nothing is predicted stays as it is,
data for each token. Where the profile does not tell bounds apart, m is p.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from estimator.contract.answer import Answer, Time, Versions
from estimator.contract.errors import Unreadable, WillItFitError
from estimator.contract.job import Job
from estimator.contract.reading import decoded
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange.documents import job_of
from estimator.measured import profile_tables, profile_trace, trace
from estimator.measured.bottleneck_answer import Bound, Profiled, Remedy
from estimator.measured.pickled import MOST_BYTES
from estimator.measured.profile import BOUNDS, COMPUTE, COPIES, DATA, EXCHANGE, HOST, MEMORY, Profile
from estimator.measured.remedies import REMEDIES
from estimator.pipeline.estimation import estimate
from estimator.timing.host import COPIES as HOST_COPIES
from estimator.timing.host import ON_HOST
from estimator.timing.kernels import ATTENTION, PRODUCTS
from estimator.timing.kernels import MEMORY as MEMORY_KERNELS
from estimator.timing.loader import LOADER
from estimator.timing.passes import GAPS, LAUNCHES
from estimator.timing.step import BUBBLE, OPTIMIZER

KINDS = {
    PRODUCTS: COMPUTE,
    ATTENTION: COMPUTE,
    MEMORY_KERNELS: MEMORY,
    OPTIMIZER: MEMORY,
    BUBBLE: EXCHANGE,
    GAPS: HOST,
    LAUNCHES: HOST,
    HOST_COPIES: COPIES,
    ON_HOST: COPIES,
    LOADER: DATA,
}
"""What parts of a predicted step are bound by; other parts are exchanges, and at a share of the peak, compute."""
WORTH = 0.01
"""Of a token's time, what a remedy brings at least to be named."""
TAKEN = (
    "a trace of torch's profiler (export_chrome_trace), nvidia-smi dmon, iostat -x, or lines with data_time and time of a loop's "
    "steps"
)


def bottleneck(
    job: Job | Mapping[str, Any] | str | Path,
    profile: str | bytes | Path,
    *,
    on: str | None = None,
    allow_files: bool = True,
) -> Profiled:
    """What a step was bound by. `job`: as `estimate` takes it, or the path of a framework's file; `profile`: the path of a
    record, its text or its bytes; `on`: hardware in place of the job's own. Raises what `estimate` raises of the job, and
    `Unreadable` for what is no profile."""
    found = read_profile(profile)
    given = job_of(job, on)
    answer = estimate(given, allow_files=allow_files)
    predicted = seconds_by_bound(answer.time)
    whole = sum(predicted.values())
    shares = {name: seconds / whole for name, seconds in predicted.items()} if whole else {}
    bound = max(found.shares, key=lambda name: found.shares[name]) if found.shares else found.bound
    asked = given.model_dump(exclude_unset=True)
    remedies = [*_estimated(found, answer, asked, allow_files), *_by_hand(found)] if answer.job["task"] == "train" else []
    return Profiled(
        kind=found.kind,
        bound=bound,
        text=_text(found, bound, shares),
        bounds=[
            Bound(name=name, text=text, measured=found.shares.get(name), predicted=shares.get(name) if shares else None)
            for name, text in BOUNDS.items()
        ],
        figures=found.figures,
        measured_seconds=found.seconds,
        predicted_seconds=answer.time.step_seconds if answer.time else None,
        remedies=sorted((one for one in remedies if one.gain >= WORTH), key=lambda one: -one.gain),
        job=answer.job,
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def read_profile(given: str | bytes | Path) -> Profile:
    """A profile, whatever wrote it. Raises `Unreadable`."""
    where = str(given) if isinstance(given, Path) else "profile"
    if isinstance(given, Path):
        try:
            with given.open("rb") as file:
                given = file.read(MOST_BYTES + 1)
        except (OSError, ValueError) as error:
            raise Unreadable(f"cannot be read: {getattr(error, 'strerror', None) or error}", where) from None
    data = given.encode() if isinstance(given, str) else given
    if trace.is_trace(data):
        return profile_trace.profile(trace.parsed_events(trace.unpacked(data, where), where), where)
    text = decoded(data, where)
    for read in (profile_tables.dmon, profile_tables.iostat, profile_tables.timings):
        if found := read(text):
            return found
    raise Unreadable(f"is no profile that is known: give {TAKEN}", where)


def seconds_by_bound(time: Time | None) -> dict[str, float]:
    """Predicted seconds of a step by what bounds them."""
    found = dict.fromkeys(BOUNDS, 0.0) if time else {}
    for part in time.parts if time else ():
        kind = KINDS.get(part.name) or (EXCHANGE if part.name.endswith(")") else COMPUTE)
        found[kind] += part.seconds
    return found


def _estimated(found: Profile, answer: Answer, asked: Mapping[str, Any], allow_files: bool) -> Iterator[Remedy]:
    """The remedies that are settings of the job."""
    before = seconds_by_bound(answer.time)
    if answer.time is None:
        return
    measured = found.shares or {name: seconds / answer.time.step_seconds for name, seconds in before.items()}
    tokens = answer.time.tokens_per_second * answer.time.step_seconds
    for one in REMEDIES:
        change = one.change(answer.job) if one.change and measured.get(one.bound, 0.0) >= WORTH else None
        if not change:
            continue
        changed = {**asked, **{part: {**(asked.get(part) or {}), **settings} for part, settings in change.items()}}
        try:
            after = estimate(changed, allow_files=allow_files)
        except WillItFitError:
            continue
        if after.time is None or after.fits is False:
            continue
        now = seconds_by_bound(after.time)
        more = after.time.tokens_per_second * after.time.step_seconds / tokens
        same = {**dict.fromkeys(BOUNDS, 1.0), DATA: more}  # a token's data take as long as before
        left = sum(share * (now[name] / before[name] if before[name] else same[name]) for name, share in measured.items())
        yield Remedy(bound=one.bound, text=one.text, change=change, gain=1 - left / sum(measured.values()) / more, at_most=False)


def _by_hand(found: Profile) -> Iterator[Remedy]:
    """What helps and is no setting of a job: all of its bound at most."""
    waiting = found.figures.get("waiting for data", 0.0)
    idle = 1 - found.figures["a kernel runs"] if "a kernel runs" in found.figures else 0.0
    shares = found.shares or {DATA: waiting, HOST: idle}
    for one in REMEDIES:
        if one.change is None and shares.get(one.bound):
            yield Remedy(bound=one.bound, text=one.text, change={}, gain=shares[one.bound], at_most=True)


def _text(found: Profile, bound: str | None, predicted: Mapping[str, float]) -> str:
    ours = max(predicted, key=lambda name: predicted[name]) if predicted else None
    beside = f"; predicted to take most: {BOUNDS[ours]}, {predicted[ours]:.0%}" if ours else ""
    if found.shares and bound:
        return f"{found.shares[bound]:.0%} of the time goes to {BOUNDS[bound]}{beside}"
    said = ", ".join(f"{name} {value:.0%} of the time" for name, value in found.figures.items())
    if bound is None:
        return f"{said}: not bound by what this shows{beside}"
    either = "the host or the data loader" if bound == HOST and found.kind == "nvidia-smi dmon" else BOUNDS[bound]
    return f"{said}: bound by {either}{beside}"
