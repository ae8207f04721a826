"""The verdict on a job: what it may take of a GPU, and whether what it needs fits in that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from estimator.contract.answer import HostMemory, Memory
from estimator.contract.job import Job
from estimator.contract.units import gib
from estimator.hardware.capacity import ram_bytes
from estimator.pipeline.remedies import parts
from estimator.runtime.overheads import beside_in_ram
from estimator.serving.engines import engine_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """`fits` is None where the answer is unknown."""

    fits: bool | None
    verdict: Literal["fits", "tight", "does not fit", "unknown"]
    reason: str
    suggestions: tuple[str, ...] = ()
    host: bool = False
    """Whether it is the host's memory that is too small."""


def offered(limit: int | None, job: Job) -> int | None:
    """Bytes of a GPU that the job may take: all of them, or the share that its engine is told to; None if no GPU was given."""
    if limit is None or job.task != "serve":
        return limit
    return int(limit * engine_of(job).share(job.serving))


def judge(job: Job, memory: Memory) -> Verdict:
    """Fits if even the high end does; tight if the caching allocator gets by, which gives back what is wholly free when the card
    is full."""
    limit = offered(memory.capacity_bytes, job)
    if limit is None:
        return Verdict(None, "unknown", "no hardware was given: name a gpu, or an amount of memory")
    if job.task == "serve" and (refused := engine_of(job).not_started(job, memory)):
        return Verdict(False, "does not fit", refused)
    share = "" if limit == memory.capacity_bytes else f" ({engine_of(job).title}'s {engine_of(job).share(job.serving):.0%} share)"
    needed = f"{gib(memory.total_bytes)} needed at the peak ({memory.peak_phase.replace('_', ' ')})"
    spare = limit - memory.total_bytes
    if spare < 0:
        part, size = next(iter(parts(memory).items()))
        offers = "the RAM has" if job.hardware.without_gpu else "one GPU offers"
        most = f", of which {gib(size)} are {part.replace('_', ' ')}"
        return Verdict(False, "does not fit", f"{needed}{most}: {gib(-spare)} more than the {gib(limit)} that {offers}{share}")
    reason = f"{needed} of {gib(limit)}{share}; {gib(spare)} to spare"
    cache = memory.kv_cache
    if cache is not None and cache.available_range_bytes is not None and cache.needed_bytes > cache.available_range_bytes[0]:
        least, server = gib(cache.available_range_bytes[0]), engine_of(job).title
        return Verdict(
            True,
            "tight",
            f"{reason}; but {server} may find no more than {least} for its cache of {gib(cache.needed_bytes)}",
        )
    if memory.range_bytes[1] <= limit:
        return Verdict(True, "fits", reason)
    hint = "set PYTORCH_ALLOC_CONF=expandable_segments:True to keep fragmentation low"
    asked = job.task == "train" and not job.training.expandable_segments
    takes = "cached blocks and the context" if memory.engine is None else "libraries and CUDA graphs"
    takes = "the operating system" if job.hardware.without_gpu else takes
    free = (memory.reserved_bytes or 0) - (memory.held_bytes or 0)
    if free > spare:  # of a full card, what is left says nothing
        reason = f"{needed} of {gib(limit)}, {gib(free)} of them free blocks that torch gives back when the card is full"
        return Verdict(True, "tight", reason, (hint,) if asked else ())
    return Verdict(True, "tight", f"{reason}, which {takes} may take", (hint,) if asked else ())


def judge_host(found: Verdict, host: HostMemory | None) -> Verdict:
    """The verdict on the GPU, unless the job says what memory a node has and that is too small."""
    if host is None or host.capacity_bytes is None or found.fits is False:
        return found
    needed = f"a node needs {gib(host.peak_bytes)} of its own memory ({host.peak_phase})"
    spare = host.capacity_bytes - host.peak_bytes
    if spare < 0:
        return Verdict(False, "does not fit", f"{needed}, {gib(-spare)} more than its {gib(host.capacity_bytes)}", host=True)
    if host.range_bytes[1] > host.capacity_bytes and found.verdict == "fits":
        return Verdict(True, "tight", f"{found.reason}; {needed} of {gib(host.capacity_bytes)}, and its processes may take more")
    return found


def judge_ram(found: Verdict, job: Job, memory: Memory) -> Verdict:
    """The verdict on the GPU, unless the job says how much RAM a node has, and what its engine leaves there is more."""
    ram = ram_bytes(job.hardware)
    if ram is None or job.task != "serve" or found.fits is False or job.hardware.without_gpu:
        return found
    needed, system = sum(memory.host_bytes.values()), beside_in_ram().high_bytes
    said = f"{gib(needed)} in the RAM of {gib(ram)}"
    if needed > ram:
        return Verdict(False, "does not fit", f"{said}, {gib(needed - ram)} too many", host=True)
    if needed + system > ram and found.verdict == "fits":
        return Verdict(True, "tight", f"{found.reason}; {said}, of which the operating system may take {gib(system)}")
    return found
