"""`torch.autograd.graph.save_on_cpu` where the GPU's tensors lie on the CPU, and have no numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch.autograd.graph import saved_tensors_hooks
from transformers import modeling_utils

from estimator.contract.job import Job


class SavedOnHost(saved_tensors_hooks):
    """What is packed is not counted: the host has it. Unpacking makes a new tensor, contiguous as a pinned copy is."""

    def __init__(self, **settings: Any) -> None:
        def pack(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
            return tensor.size(), tensor.dtype

        def unpack(packed: tuple[torch.Size, torch.dtype]) -> torch.Tensor:
            return torch.empty(packed[0], dtype=packed[1])

        super().__init__(pack, unpack)


@contextmanager
def on_host() -> Iterator[None]:
    """transformers' offloaded checkpoints use these hooks."""
    with mock.patch.object(modeling_utils, "save_on_cpu", SavedOnHost):
        yield


def forward_offloaded(job: Job) -> Any:
    """What the forward pass runs in: without checkpointing, all that it saves is offloaded."""
    whole = job.offload.activations == "cpu" and job.training.activation_checkpointing == "none"
    return SavedOnHost() if whole else nullcontext()
