"""What is taken for granted of the GPUs, and what to know of a card before relying on the answer."""

from __future__ import annotations

from collections.abc import Iterator

from estimator.contract.job import Job
from estimator.contract.notes import Said, all_said
from estimator.hardware.capability import gpu
from estimator.hardware.capacity import Capacity
from estimator.parallel.topology import Topology
from estimator.serving.engine import compute_type
from estimator.serving.engines import engine_of
from estimator.serving.transformers.engine import TRANSFORMERS
from estimator.tape.dtypes import DType
from estimator.training.overrides import precision_of


def of_hardware(job: Job, place: Topology, card: Capacity) -> Iterator[Said]:
    """What is assumed of it; of its time only where the card has a name, and so a time."""
    yield from all_said("attention-kernel", _of_sdpa(job, card), "hardware.gpu")
    if place.gpus > 1 and (card.accelerator is None or card.accelerator.vendor != "nvidia"):
        text = "a node's GPUs are taken to be connected as A100s are, by NVLink; what NCCL allocates depends on it"
        yield Said("assumed-links", text, "hardware.gpu")
    if card.accelerator is not None and (place.gpus > 1 if job.task == "train" else place.tensor > 1):
        from estimator.timing.links import between_gpus

        yield from all_said("bandwidths", between_gpus(job.hardware, card.accelerator), "hardware.gpu")


def warnings_of_hardware(job: Job, place: Topology, card: Capacity) -> Iterator[Said]:
    """What to know of the card."""
    if _compute(job, place).name == "bfloat16":
        yield from all_said("no-bf16", without_bf16(card), "hardware.gpu")
    yield from all_said("no-cuda", without_cuda(card), "hardware.gpu")
    if card.accelerator and not card.accelerator.memory.verified:
        fact = card.accelerator.memory
        text = f"what a process can allocate on {card.accelerator.name} has no second source ({fact.note}; {fact.source})"
        yield Said("unverified-memory", text, "hardware.gpu")


def _of_sdpa(job: Job, card: Capacity) -> list[str]:
    """How torch's attention is taken to choose its kernel, where the GPU's name does not settle it."""
    if job.task == "train" and job.training.implementation == "megatron":
        return []
    if job.training.attention != "sdpa" if job.task == "train" else engine_of(job) is not TRANSFORMERS:
        return []
    if gpu(job, card).prefers_cudnn and job.task == "train" and job.training.implementation == "torchtitan":
        return ["torchtitan asks for cuDNN's attention before flash attention, and for no memory-efficient one"]
    if gpu(job, card).prefers_cudnn:
        return ["sdpa prefers cuDNN's attention, as with the cuDNN 9.20 that torch 2.13 brings"]
    if not card.compute_capability:
        return ["sdpa chooses its kernel as on a GPU of compute capability 8.0"]
    return []


def _compute(job: Job, place: Topology) -> DType:
    """What matrix products run in."""
    if job.task == "train":
        return precision_of(job, place).compute
    return compute_type(job.serving)


def without_bf16(card: Capacity) -> list[str]:
    """What to know of a card whose arithmetic has no bf16."""
    if card.accelerator is None or card.accelerator.bf16:
        return []
    return [f"{card.accelerator.name} has no bf16 arithmetic: expect bf16 slow, or refused (as vLLM does), and write fp16"]


def without_cuda(card: Capacity) -> list[str]:
    """What to know of a card that runs other kernels than those that are counted."""
    if card.accelerator is None or card.accelerator.vendor == "nvidia":
        return []
    runs = _RUNS.get(card.accelerator.vendor, "its maker's own")
    return [
        f"{card.accelerator.name} runs {runs}; counted are torch's kernels, its allocator and what lies beside it as on CUDA of "
        "compute capability 8.0: take the bytes for an indication, and the time for less"
    ]


_RUNS = {
    "amd": "torch on ROCm",
    "apple": "torch on Metal, or MLX",
    "aws": "programs that Neuron compiles",
    "google": "programs that XLA compiles",
    "huawei": "torch_npu",
}
