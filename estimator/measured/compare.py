"""A record beside a job: what is predicted of each quantity that was measured, and how far one is from the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from estimator.contract.answer import Memory
from estimator.measured.answers import Culprit, MeasuredRow, SizeRow
from estimator.measured.culprit import Found, culprit
from estimator.measured.record import QUANTITIES, Amount, Record
from estimator.pipeline.judged import judge_run
from estimator.pipeline.run import Run
from estimator.tape.tape import ALLOCATION_STEP
from estimator.timelines.timeline import Recorded, recorded

SAME = 0.01
"""Share of what was measured up to which a difference is none: what kernels take beside tensors, blocks that are not split."""
LOOSE = 0.05
"""The same of what was reserved or used, which hangs on how blocks fall (`fragmentation` in runtime/overheads.yaml)."""
EXACT = ("allocated", "requested", "weights", "activation", "compute", "cache")
LARGE = 1 << 20
"""Bytes of a tensor that is compared by its size; smaller ones are many, and little."""
SIZES = 12


@dataclass(frozen=True, slots=True)
class Compared:
    """A job's prediction and its distance from a record.

    `difference_bytes`: measured less predicted of `quantity`; None where the job has nothing to compare. `same`: whether that is
    within what can be told apart.
    """

    quantity: str
    predicted_bytes: int | None
    difference_bytes: int | None
    same: bool
    culprit: Culprit | None
    rows: tuple[MeasuredRow, ...]
    sizes: tuple[SizeRow, ...]
    memory: Memory
    run: Run


def compare(run: Run, record: Record, quantity: str = "", beside: int = 0) -> Compared:
    """Line a record up. `quantity`: the one whose difference is asked about; without it the one that says most. `beside`: bytes
    that are allocated beside what the job has."""
    memory = judge_run(run).memory
    predicted = _predicted(memory)
    rows = tuple(
        MeasuredRow(quantity=name, measured=one.bytes, within=one.within, predicted=predicted.get(name))
        for name in QUANTITIES
        if (one := record.amounts.get(name)) is not None
    )
    if "cache_tokens" in record.numbers:
        tokens = memory.engine.cache_tokens if memory.engine else None
        rows += (MeasuredRow(quantity="cache_tokens", measured=record.numbers["cache_tokens"], within=0, predicted=tokens),)
    requested = record.amounts.get("requested")
    needs_step = requested is not None or record.alive is not None
    step = recorded(run) if needs_step else None
    sizes = tuple(_sizes(step, record.alive)) if step is not None and record.alive is not None else ()
    if step is not None and requested is not None:
        return _of_failure(run, record, requested, step, rows, sizes, memory, beside)
    name = quantity or _telling(rows)
    row = next((one for one in rows if one.quantity == name), None)
    known = None if row is None or row.predicted is None else row.predicted + beside
    difference = None if row is None or known is None else row.measured - known
    same = row is not None and difference is not None and abs(difference) <= row.within + _slack(name, row.measured, memory)
    return Compared(name, known, difference, same, None, rows, sizes, memory, run)


def _of_failure(
    run: Run,
    record: Record,
    requested: Amount,
    step: Recorded,
    rows: tuple[MeasuredRow, ...],
    sizes: tuple[SizeRow, ...],
    memory: Memory,
    beside: int,
) -> Compared:
    """An allocation that failed: is there one of that size, and at that level?"""
    level = record.amounts.get("allocated")
    workspaces = memory.overhead.get("cublas_workspaces", 0) // 2 + beside  # torch allocates them, too; backward's come late
    found: Found | None = culprit(step, requested, None if level is None else level.bytes - workspaces)
    if found is None:
        return Compared("requested", None, None, False, None, rows, sizes, memory, run)
    slack = 0 if level is None else level.within + _slack("allocated", level.bytes, memory)
    predicted = found.culprit.allocated_bytes + workspaces
    same = abs(found.difference_bytes) <= slack
    return Compared("allocated", predicted, found.difference_bytes, same, found.culprit, rows, sizes, memory, run)


def _predicted(memory: Memory) -> dict[str, int | None]:
    found: dict[str, int | None] = {
        "allocated": memory.peak_bytes,
        "reserved": memory.reserved_bytes,
        "used": memory.total_bytes,
    }
    if engine := memory.engine:
        found |= {
            "weights": engine.weights_bytes,
            "activation": engine.activation_bytes,
            "non_torch": engine.non_torch_bytes,
            "cuda_graph": engine.cuda_graph_bytes,
            "cache": engine.cache_bytes,
        }
    if memory.devices:
        found["weights"] = max(one.weights_bytes for one in memory.devices)  # as logs are read: of each kind the largest
        found["cache"] = max(one.cache_bytes for one in memory.devices)
        found["compute"] = max(one.compute_bytes for one in memory.devices)
    return found


def _telling(rows: tuple[MeasuredRow, ...]) -> str:
    """Of a process what torch allocated, else what it reserved, else what the GPU shows; of an engine what differs most."""
    names = [row.quantity for row in rows]
    for name in ("allocated", "reserved", "used"):
        if name in names:
            return name
    known = [row for row in rows if row.predicted is not None and row.quantity != "cache_tokens"]
    most = max(known, key=lambda row: abs(row.measured - (row.predicted or 0)), default=None)
    return most.quantity if most else names[0] if names else "allocated"


def _slack(name: str, measured: int, memory: Memory) -> int:
    """What a difference may be that means nothing."""
    workspaces = memory.overhead.get("cublas_workspaces", 0) if name == "allocated" else 0
    spread = memory.range_bytes[1] - memory.total_bytes if name == "used" else 0
    return round(measured * (SAME if name in EXACT else LOOSE)) + workspaces + max(spread, 0)


def _sizes(step: Recorded, measured: Counter[int]) -> Iterator[SizeRow]:
    """Where the tensors alive at the peak differ, by size rounded as the allocator rounds."""
    course, sizes = step.course, step.course.tape.sizes
    peak = step.peak
    predicted = Counter(sizes[one.storage] for one in course.births if one.born <= peak and (one.died is None or one.died > peak))
    rounded: Counter[int] = Counter()
    for size, count in measured.items():
        rounded[-(-size // ALLOCATION_STEP) * ALLOCATION_STEP] += count
    differing = [size for size in {*rounded, *predicted} if size >= LARGE and rounded[size] != predicted[size]]
    differing.sort(key=lambda size: -size * abs(rounded[size] - predicted[size]))
    for size in differing[:SIZES]:
        yield SizeRow(bytes=size, measured=rounded[size], predicted=predicted[size])
