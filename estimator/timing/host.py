"""What a step waits for that goes through its host: copies over the bus, and an optimizer that works in the host's memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from estimator.contract.job import Job
from estimator.contract.units import GB
from estimator.facts.fact import measured
from estimator.hardware.accelerator import Accelerator
from estimator.parallel.strategies import strategy_of
from estimator.parallel.zero3_offload import OffloadedZero3, files
from estimator.simulation.simulation import Simulation
from estimator.tape.kernels import exchanges
from estimator.tape.tape import HOST, Tape
from estimator.timing.measured import shared
from estimator.timing.optimizer import moved_bytes

FILE = Path(__file__).parent / "host.yaml"
COPIES, ON_HOST = "copies (host)", "optimizer (host)"

Three = tuple[float, float, float]
"""Seconds at least, expected and at most."""
NONE: Three = (0.0, 0.0, 0.0)


def copied(tape: Tape, phase: str, group: str, passes: int, card: Accelerator) -> Three:
    """What one pass of a phase copies, both directions at once."""
    bus = card.pcie.bandwidth.value if card.pcie else shared().unknown_link.value
    return shared().host_pinned.taken(max(_copies(tape, phase, group).values(), default=0) / passes / (bus * GB))


def _copies(tape: Tape, phase: str, group: str) -> Counter[str]:
    """Bytes that a phase copies in each direction."""
    nbytes: Counter[str] = Counter()
    for one, times in exchanges(tape):
        if one.phase == phase and one.group == group:
            nbytes[one.operation] += one.nbytes * times
    return nbytes


def read_from_nvme(job: Job, simulation: Simulation, phase: str) -> Three:
    """What one pass of a phase reads of parameters that are in files, a node's ranks together; while kernels run, for the next
    are fetched ahead."""
    sharding, tape = simulation.build.sharding, simulation.build.tape
    if not isinstance(sharding, OffloadedZero3) or job.offload.parameters != "nvme":
        return NONE
    in_files = files(sharding).parameters / (sharding.partition * sharding.dtype.itemsize)
    nbytes = _copies(tape, phase, HOST)["from_host"] / tape.passes(phase) * in_files
    return measured(FILE)["nvme"].taken(job.hardware.gpus * nbytes / GB)


def on_host(job: Job) -> bool:
    """Whether the optimizer works there."""
    offload = job.offload
    return offload.optimizer != "none" or (strategy_of(job).dtensors and offload.parameters == "cpu")


def adam_seconds(stage: int, nbytes: float) -> float:
    """Expected seconds in which Adam on the host reads and writes so many bytes of a node: DeepSpeed's, or torch's at stage 0."""
    return measured(FILE)["deepspeed" if stage else "torch"].taken(nbytes / GB)[1]


def optimizer_seconds(job: Job, simulation: Simulation) -> Three:
    """The step of an optimizer that works `on_host`, a node's ranks together. Its states on NVMe are read and written besides,
    parameters written."""
    build, host = simulation.build, simulation.build.tape.host
    assert host is not None
    by = "deepspeed" if strategy_of(job).stage else "torch"
    facts, gpus = measured(FILE), job.hardware.gpus
    states, parameters = files(build.sharding) if isinstance(build.sharding, OffloadedZero3) else (0, 0)
    # of what is in `states` half are Adam's own, which are read and written in buffers as they would be in memory
    in_memory = facts[by].taken(gpus * (moved_bytes(build.parameters, host) + states) / GB)
    moved = facts["nvme"].taken(gpus * (2 * states + parameters) / GB)
    return in_memory[0] + moved[0], in_memory[1] + moved[1], in_memory[2] + moved[2]
