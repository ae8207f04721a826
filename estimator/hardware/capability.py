"""What of a job's GPU, and of the libraries on it, torch's choice of kernels depends on."""

from __future__ import annotations

from estimator.hardware.capacity import Capacity
from estimator.job import Job
from estimator.runtime.nccl import Links
from estimator.tape.tape import Gpu

CUDNN_PREFERRED = (9, 10)
"""Major compute capabilities on which torch prefers cuDNN's attention, if cuDNN is newer than 9.15 (sdp_utils.cpp,
`check_prefer_cudnn_attention`): torch 2.13 brings 9.20 (nvidia-cudnn-cu13), those before 2.11 brought older ones."""


def gpu(job: Job, card: Capacity) -> Gpu:
    """The GPU of a job; one whose compute capability is not known is taken for 8.0. The releases 4 of transformers ran on
    torch of their time; FlashAttention asks torch for no kernel."""
    capability = _parsed(card.compute_capability) or Gpu().capability
    training = job.training
    asked = job.task != "train" or (training.transformers_release == "5" and not training.attention.startswith("flash"))
    return Gpu(capability, asked and capability[0] in CUDNN_PREFERRED)


def links(card: Capacity) -> Links:
    """How a node's GPUs are connected; a card without a name, or AMD's, is taken for an A100 with its NVLinks."""
    capability = _parsed(card.compute_capability)
    if card.accelerator is None or capability is None:
        return Links(12, (8, 0))
    return Links(int(card.accelerator.nvlinks.value) if card.accelerator.nvlinks else 0, capability)


def _parsed(text: str | None) -> tuple[int, int] | None:
    """NVIDIA's two numbers, from 8.6; None for AMD's names."""
    major, _, minor = (text or "").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
