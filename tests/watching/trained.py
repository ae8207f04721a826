"""A tiny model that is really trained, on the CPU, and a reader that counts its tensors as a GPU would allocate them."""

from __future__ import annotations

from typing import Any, Self

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from estimator.verify.live import Live
from tests.jobs import TINY

TOKENS, SEQUENCES = 64, 8
JOB: dict[str, Any] = {
    "model": TINY,
    "training": {
        "precision": "32-true",
        "sequence_length": TOKENS,
        "micro_batch_size": SEQUENCES,
        "activation_checkpointing": "none",
        "attention": "eager",  # sdpa takes other kernels on a CPU than on a GPU
        "optimizer": "adamw",
        "optimizer_implementation": "foreach",
    },
}


def model() -> Any:
    """The model of `JOB`, with random weights."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {**TINY, "attn_implementation": "eager"}
    return LlamaForCausalLM(LlamaConfig(**settings))


class Counted:
    """A reader: bytes of live tensors, each rounded as CUDA's allocator rounds, from `reset` on, until it is left."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.live = Live()
        self.entered = False

    def reset(self) -> None:
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            self.live.track(tensor)
        self.live.__enter__()
        self.entered = True

    def read(self) -> dict[str, int]:
        return {"allocated": self.live.highest(0)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.entered:
            self.live.__exit__(None, None, None)


class Fixed:
    """A reader that always reads the same."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes or {"allocated": 3 << 20, "reserved": 5 << 20}
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1

    def read(self) -> dict[str, int]:
        return self.sizes
