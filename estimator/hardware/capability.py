"""What of a job's GPU, and of the libraries on it, torch's choice of kernels depends on."""

from __future__ import annotations

from pathlib import Path

from estimator.contract.job import Job
from estimator.facts.fact import MeasuredFact, measured
from estimator.hardware.capacity import Capacity
from estimator.runtime.nccl import Links
from estimator.tape.gpu import Gpu

FILE = Path(__file__).parent / "nvlink.yaml"
CUDNN_PREFERRED = (9, 10)
"""Major compute capabilities on which torch prefers cuDNN's attention, if cuDNN is newer than 9.15 (sdp_utils.cpp,
`check_prefer_cudnn_attention`): torch 2.13 brings 9.20 (nvidia-cudnn-cu13), those before 2.11 brought older ones."""

CUDNN_FIRST = (8, 0)
"""From which on cuDNN's attention runs where it is preferred to others (`check_cudnn_hardware_support`), as torchtitan asks
(0.2.2, models/attention.py, `ScaledDotProductAttentionWrapper`)."""


def gpu(job: Job, card: Capacity) -> Gpu:
    """The GPU of a job; one whose compute capability is not known is taken for 8.0. The releases 4 of transformers ran on
    torch of their time; FlashAttention asks torch for no kernel."""
    capability = _parsed(card.compute_capability) if card.compute_capability else Gpu().exact
    training = job.training
    asked = job.task != "train" or (training.transformers_release == "5" and not training.attention.startswith("flash"))
    if job.task == "train" and training.implementation == "torchtitan":
        return Gpu(capability, capability >= CUDNN_FIRST)
    return Gpu(capability, asked and capability[0] in CUDNN_PREFERRED)


def nvlinks() -> dict[str, MeasuredFact]:
    """What one NVLink carries in one direction, by generation."""
    return measured(FILE)


def links(card: Capacity, gpus: int) -> Links:
    """How the GPUs of a node are connected; a card without a name, or of another maker, is taken for an A100 with NVLinks."""
    found = card.accelerator
    if found is None or found.vendor != "nvidia" or found.compute_capability is None:
        return Links(12, (8, 0))
    joined = found.interconnect
    each = nvlinks().get(joined.kind) if joined else None
    if joined is None or each is None or (joined.peers is not None and gpus > joined.peers):
        return Links(0, _parsed(found.compute_capability))
    return Links(round(joined.bandwidth.value / each.value), _parsed(found.compute_capability))


def _parsed(text: str) -> tuple[int, int]:
    """NVIDIA's two numbers, from 8.6."""
    major, _, minor = text.partition(".")
    return int(major), int(minor)
