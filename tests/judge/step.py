"""One training step on fake tensors: full widths, no memory, and the bytes at the moments that an answer names."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import masking_utils

from estimator.job import Job
from estimator.specs.spec import ModelSpec
from tests.judge.cuda import on_cuda
from tests.judge.live import Live, resizes_seen
from tests.judge.model import autocast, build, make_optimizer, ranks

Counted = dict[str, int]


def fake_step(job: Job, spec: ModelSpec) -> Counted:
    """Bytes between steps, at the end of forward, and at the peaks of forward, backward and optimizer step.

    Counts the second step: by then the optimizer has its states.
    """
    live = Live()
    with ranks(job.parallelism.data or 1) as mesh, FakeTensorMode(allow_non_fake_inputs=True), no_packing(), on_cuda():
        model = build(job, spec, mesh)
        for tensor in [*model.parameters(), *model.buffers()]:
            live.track(tensor.data)
        optimizer = make_optimizer(job, model)
        with resizes_seen(live), live:
            play(job, spec, model, optimizer, live)
            if job.training.optimizer_implementation != "fused":
                _forget_counters(optimizer, live)
            counted = play(job, spec, model, optimizer, live)
        del model, optimizer
    gc.collect()
    return counted


def play(job: Job, spec: ModelSpec, model: nn.Module, optimizer: torch.optim.Optimizer, live: Live) -> Counted:
    """One step, with `live` counting."""
    training = job.training
    counted = {"resident": live.bytes, "forward_end": 0, "forward": 0, "backward": 0, "optimizer_step": 0}

    def lap(phase: str, start: int) -> int:
        """The highest count since log entry `start`; the next lap's start."""
        counted[phase] = max(counted[phase], live.highest(start))
        return len(live.log)

    at = len(live.log)
    for _ in range(training.gradient_accumulation_steps):
        ids = torch.randint(0, spec.vocab_size, (training.micro_batch_size, training.sequence_length))
        with autocast(job):
            result = model(input_ids=ids, labels=ids, use_cache=False)
        loss = result.loss
        counted["forward_end"] = live.bytes
        at = lap("forward", at)
        del result
        live.in_backward = True
        loss.backward()
        live.in_backward = False
        del loss, ids
        at = lap("backward", at)
    optimizer.step()
    lap("optimizer_step", at)
    optimizer.zero_grad()
    return counted


def _forget_counters(optimizer: torch.optim.Optimizer, live: Live) -> None:
    """Only a fused optimizer counts its steps on the GPU (torch/optim/adam.py, `_init_group`)."""
    for state in optimizer.state.values():
        if "step" in state:
            live.forget(state["step"])


@contextmanager
def no_packing() -> Iterator[None]:
    """Batches hold one document each. On fake tensors transformers cannot see that, and would build a mask to be safe."""

    def unpacked(position_ids: Any) -> None:
        return None

    with mock.patch.object(masking_utils, "find_packed_sequence_indices", unpacked):
        yield
