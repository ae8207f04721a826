"""The answer about a node's own memory and its disk."""

from __future__ import annotations

import math
from pathlib import Path

from estimator.contract.answer import HostMemory
from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Host, Job
from estimator.contract.units import GIB, MIB
from estimator.facts.fact import MeasuredFact, measured
from estimator.families import parameters
from estimator.families.spec import ModelSpec
from estimator.host import megatron
from estimator.host.contents import contents
from estimator.host.phases import Parts, offloaded, phases
from estimator.host.states import states_bytes
from estimator.parallel.topology import Topology
from estimator.parallel.zero3_offload import OffloadedZero3, files
from estimator.simulation.simulation import Simulation

FILE = Path(__file__).parent / "facts.yaml"


def facts() -> dict[str, MeasuredFact]:
    """The measured constants, by name."""
    return measured(FILE)


def check_host(job: Job) -> None:
    """Raise `InvalidJob` for what does not fit together, and `NotModelled`. Of a job with its defaults."""
    host, training = job.host, job.training
    if job.task == "serve":
        if host != Host():
            raise NotModelled("the host's memory while serving is llama.cpp's alone: leave it out, or write hardware.ram", "host")
        return
    if training.implementation == "megatron":
        _check_megatron(host)
    if training.adapter is None:
        for asked, where in ((host.save == "adapter", "save"), (host.merge, "merge")):
            if asked:
                raise Contradiction("there is no adapter; leave it out, or add training.adapter", f"host.{where}")
    if training.quantization and host.save not in ("adapter", "none"):
        raise NotModelled("saving quantized weights is not modelled yet; write adapter", "host.save")
    if training.quantization and host.merge:
        raise NotModelled("merging into quantized weights is not modelled yet; leave it out", "host.merge")


def _check_megatron(host: Host) -> None:
    if host.loading != "device":
        raise Contradiction("Megatron makes each part on its GPU, and reads it there: leave it out", "host.loading")
    if host.save == "checkpoint":
        raise Contradiction("Megatron gathers no checkpoint (torch_dist): write sharded, model or none", "host.save")


def host_memory(job: Job, spec: ModelSpec, place: Topology, simulated: Simulation) -> HostMemory | None:
    """What a training job takes of each node; None while serving."""
    if job.task == "serve":
        return None
    build = simulated.build
    kept = offloaded(build.tape.host, simulated.host)
    process, worker = facts()["python_process"], facts()["data_loader_worker"]
    written = megatron.written_bytes(job, build) if job.training.implementation == "megatron" else 0

    def taken(process_mib: float, worker_mib: float) -> dict[str, Parts]:
        processes, workers = round(process_mib * MIB), round(worker_mib * MIB)
        if job.training.implementation == "megatron":
            return megatron.phases(job, build, place, kept, written, processes, workers)
        return phases(job, simulated, kept, processes, workers)

    expected = taken(process.value, worker.value)
    low, high = (
        max(sum(parts.values()) for parts in found.values())
        for found in (taken(process.low, worker.low), taken(process.high, worker.high))
    )
    peak = max(expected, key=lambda phase: sum(expected[phase].values()))
    return HostMemory(
        capacity_bytes=job.host.memory,
        phases={phase: sum(parts.values()) for phase, parts in expected.items()},
        peak_bytes=sum(expected[peak].values()),
        peak_phase=peak,
        range_bytes=(low, high),
        at_peak=expected[peak],
        rank_resident_bytes=kept.resident_bytes,
        rank_peak_bytes=kept.peak_bytes,
        disk_bytes=disk_bytes(job, spec, simulated),
        scheduler=f"--mem={math.ceil(high / GIB)}G",
    )


def disk_bytes(job: Job, spec: ModelSpec, simulated: Simulation) -> dict[str, int]:
    """What is saved once, of the whole job; and the files of a node's states on NVMe.

    An optimizer's file holds its states, DeepSpeed's and Megatron's also the float32 weights; what containers add, some hundred
    bytes per tensor, is left out. Of Megatron's, whose rank has a part, the vocabulary's padding is, too.
    """
    build, found = simulated.build, {}
    if job.training.implementation == "megatron":
        return megatron.disk_bytes(job, build, sum(p.total for p in parameters(spec)))
    model, adapter = contents(simulated)
    if job.host.save in ("model", "checkpoint", "sharded"):
        found["model"] = model.disk_bytes
    if job.training.adapter and job.host.save != "none":
        found["adapter"] = adapter.disk_bytes
    if job.host.save in ("checkpoint", "sharded"):
        found["optimizer"] = states_bytes(job, build)
    if isinstance(build.sharding, OffloadedZero3) and (nvme := sum(files(build.sharding))):
        found["nvme"] = job.hardware.gpus * nvme
    return found
