"""What Megatron-LM takes of a node's own memory: parts are made on their GPUs, and saved as they lie.

After core/dist_checkpointing and core/datasets/gpt_dataset.py of Megatron-Core 0.16, and torch/distributed/checkpoint of torch
2.13.
"""

from __future__ import annotations

from estimator.contract.job import Job
from estimator.families.build import Builder
from estimator.host.phases import Offloaded
from estimator.host.states import kept as states_kept
from estimator.parallel.megatron import MainParameters
from estimator.parallel.topology import Topology
from estimator.tape.host import pinned_bytes

STATE = 4
"""Bytes per element of float32 weights and states, of which a rank reads its part."""
TOKEN = 28
"""Bytes per token of a batch: token, label and position of 8 each, and the loss's mask of 4."""
MASK, MAKING = 1, 9
"""Bytes per pair of tokens of the attention mask that comes with each sequence (`create_attention_mask`, the default), and of
the float32 matrix and its triangle that the first one is made from."""

Parts = dict[str, int]


def phases(
    job: Job, build: Builder, place: Topology, kept: Offloaded, written: int, process: int, worker: int
) -> dict[str, Parts]:
    """By phase and part, bytes per node, whose ranks are all taken to be as the one that `build` is of. `written`: what one
    writes.

    A checkpoint is read tensor by tensor (torch/distributed/checkpoint/filesystem.py, `read_data`). It is written from a copy of
    all that a rank writes, in pinned memory (`FileSystemWriterAsync.preload_tensors`), whether training waits for it or not.
    """
    ranks = job.hardware.gpus
    always = {"processes": ranks * process}
    sharding = build.sharding
    assert isinstance(sharding, MainParameters)
    largest = max(max(p.tensor.nbytes, STATE * p.tensor.numel // sharding.ranks(p.name).size) for p in build.parameters)
    running = {**always, "data_loader": _loading_ranks(job, place) * _data_loader(job, worker)}
    load = {**always, "loaded_weights": ranks * largest}
    train = running | {name: ranks * size for name, size in kept.components}
    if kept.peak_bytes:
        load["offloaded"] = ranks * kept.setting_up_bytes
        running["offloaded"] = ranks * kept.resident_bytes
    found = {"load": load, "train": train}
    if job.host.save != "none":
        found["save"] = {**running, "saved": ranks * written}
    return found


def written_bytes(job: Job, build: Builder) -> int:
    """What one rank copies to write its share of a checkpoint: each tensor in a power of two.

    Ranks that hold the same share the work (`FullyParallelSaveStrategyWrapper`), and the distributed optimizer is in parts
    anyway; so a rank has one in d of all tensors.
    """
    assert isinstance(build.sharding, MainParameters)
    total = 0
    for p, states in states_kept(job, build):
        tensors = [p.tensor.nbytes, *(states if job.host.save == "sharded" and job.offload.optimizer == "none" else ())]
        total += p.times * sum(map(pinned_bytes, tensors)) // build.sharding.ranks(p.name).size
    return total


def _loading_ranks(job: Job, place: Topology) -> int:
    """Ranks of a node that load data: of the first and the last stage, one of those that share tensors (pretrain_gpt.py,
    `is_dataset_built_on_rank`)."""
    stage = place.gpus // place.pipeline
    return max(1, min(job.hardware.gpus, 2 * stage) // place.tensor)


def _data_loader(job: Job, worker: int) -> int:
    """Bytes of one rank that loads data: its workers, each with an attention mask of its own, and the batches that are ready,
    one of them in pinned memory."""
    host, training = job.host, job.training
    pairs = training.sequence_length**2
    batch = training.micro_batch_size * (TOKEN * training.sequence_length + MASK * pairs)
    making = max(1, host.data_loader_workers) * MAKING * pairs
    ready = host.data_loader_workers * host.prefetch_factor
    return host.data_loader_workers * worker + making + ready * batch + host.pin_memory * pinned_bytes(batch)


def disk_bytes(job: Job, build: Builder, elements: int) -> dict[str, int]:
    """A checkpoint of a model of so many elements, all ranks together: as many bytes for each as this rank's parameters have."""
    if job.host.save == "none":
        return {}
    numel = sum(p.tensor.numel * p.times for p in build.parameters)
    weights = sum(p.tensor.nbytes * p.times for p in build.parameters)
    found = {"model": elements * weights // numel}
    if job.host.save == "sharded":
        found["optimizer"] = elements * sum(p.times * sum(states) for p, states in states_kept(job, build)) // numel
    return found
