"""What a step waits for that goes through its host: copies over the bus, and an optimizer that works in the host's memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from estimator.facts import measured
from estimator.hardware.accelerator import Accelerator
from estimator.job import Job
from estimator.parallel.zero3_offload import OffloadedZero3, nvme_bytes
from estimator.playing import Play
from estimator.tape.kernels import exchanges
from estimator.tape.tape import Tape
from estimator.timing.measured import shared
from estimator.timing.optimizer import moved_bytes
from estimator.units import GB

FILE = Path(__file__).parent / "host.yaml"
COPIES, ON_HOST = "copies (host)", "optimizer (host)"
FULLY_SHARDED = ("fsdp2", "hsdp")

Three = tuple[float, float, float]
"""Seconds at least, expected and at most."""
NONE: Three = (0.0, 0.0, 0.0)


def copied(tape: Tape, phase: str, group: str, passes: int, card: Accelerator) -> Three:
    """What one pass of a phase copies, both directions at once."""
    nbytes: Counter[str] = Counter()
    for one, times in exchanges(tape):
        if one.phase == phase and one.group == group:
            nbytes[one.operation] += one.nbytes * times
    bus = card.pcie.bandwidth.value if card.pcie else shared().unknown_link.value
    return shared().host_pinned.taken(max(nbytes.values(), default=0) / passes / (bus * GB))


def on_host(job: Job) -> bool:
    """Whether the optimizer works there."""
    offload = job.offload
    return offload.optimizer != "none" or (job.parallelism.strategy in FULLY_SHARDED and offload.parameters == "cpu")


def optimizer_seconds(job: Job, play: Play) -> Three:
    """The step of an optimizer that works `on_host`, a node's ranks together; on NVMe its files are read and written besides."""
    build, host = play.build, play.build.tape.host
    assert host is not None
    by = "deepspeed" if (job.parallelism.strategy or "").startswith("zero") else "torch"
    facts, gpus = measured(FILE), job.hardware.gpus
    found = facts[by].taken(gpus * moved_bytes(build.parameters, host) / GB)
    if not isinstance(build.sharding, OffloadedZero3) or job.offload.optimizer != "nvme":
        return found
    files = facts["nvme"].taken(gpus * 2 * nvme_bytes(build.sharding) / GB)
    return found[0] + files[0], found[1] + files[1], found[2] + files[2]
