"""One training step on fake tensors: full widths, no memory, and the bytes at the moments that an answer names."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from transformers import PreTrainedModel, masking_utils

from estimator.hardware.capability import gpu
from estimator.hardware.capacity import capacity
from estimator.job import Job
from estimator.specs.spec import ModelSpec
from estimator.verify import objectives
from estimator.verify.batch import batch
from estimator.verify.cuda import on_cuda
from estimator.verify.evaluation import evaluate
from estimator.verify.live import Live, resizes_seen
from estimator.verify.model import autocast, build, make_optimizer, ranks

Counted = dict[str, int]
Log = list[tuple[int, str]]
"""Changes of the live bytes, each with the operation during which it happened."""


def fake_step(job: Job, spec: ModelSpec, logs: dict[str, Log] | None = None) -> Counted:
    """Bytes between steps, at the end of forward, and at the peaks of forward, backward and optimizer step.

    Counts the second step: by then the optimizer has its states. `logs` gets the changes of each phase.
    """
    card = gpu(job, capacity(job.hardware))
    live = Live(card)
    with ranks(job.parallelism.data or 1) as mesh, FakeTensorMode(allow_non_fake_inputs=True), no_packing(), on_cuda(card):
        with mock.patch.object(PreTrainedModel, "initialize_weights"):  # fake tensors have no numbers to set
            model = build(job, spec, mesh)
            called = objectives.Trainer(job, spec, model) if job.training.objective else model
        for tensor in [*called.parameters(), *called.buffers()]:
            live.track(tensor.data)
        optimizer = make_optimizer(job, model)
        with usual_numbers(), resizes_seen(live), objectives.kernels(job, live), live:
            play(job, spec, called, optimizer, live)
            if job.training.optimizer_implementation != "fused":
                _forget_counters(optimizer, live)
            evaluated = evaluate(job, spec, called, live, logs) if job.training.evaluation else {}
            counted = play(job, spec, called, optimizer, live, logs) | evaluated
        del model, called, optimizer
    gc.collect()
    return counted


def untouched(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """An initialisation that leaves the tensor: the real one draws again until all numbers suit, and fake tensors have none."""
    return tensor


def play(job: Job, spec: Any, model: nn.Module, optimizer: torch.optim.Optimizer, live: Live, logs: Any = None) -> Counted:
    """One step, with `live` counting."""
    training = job.training
    counted = {"resident": live.bytes, "forward_end": 0, "forward": 0, "backward": 0, "optimizer_step": 0}

    def lap(phase: str, start: int) -> int:
        """The highest count since log entry `start`; the next lap's start."""
        counted[phase] = max(counted[phase], live.highest(start))
        if logs is not None:
            logs.setdefault(phase, []).extend(live.log[start:])
        return len(live.log)

    at = len(live.log)
    for _ in range(training.gradient_accumulation_steps):
        inputs = model.batch(spec.vocab_size) if isinstance(model, objectives.Trainer) else batch(job, spec, model)
        with nullcontext() if isinstance(model, objectives.Trainer) else autocast(job):
            result = model(**inputs)
        loss = result.loss
        counted["forward_end"] = live.bytes
        at = lap("forward", at)
        del result
        live.in_backward = True
        loss.backward()
        live.in_backward = False
        del loss, inputs
        at = lap("backward", at)
    if training.gradient_clipping:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    lap("optimizer_step", at)
    optimizer.zero_grad(set_to_none=training.zero_grad_to_none)
    return counted


def _forget_counters(optimizer: torch.optim.Optimizer, live: Live) -> None:
    """Only a fused optimizer counts its steps on the GPU (torch/optim/adam.py, `_init_group`)."""
    for state in optimizer.state.values():
        if "step" in state:
            live.forget(state["step"])


@contextmanager
def no_packing() -> Iterator[None]:
    """Batches hold one document each, without padding.

    On fake tensors transformers cannot see that, and would build a mask to be safe.
    """

    def unpacked(position_ids: Any) -> None:
        return None

    def traced(tensor: Any = None) -> bool:
        return False

    def full(mask: torch.Tensor) -> bool:
        del mask
        return True

    with mock.patch.multiple(masking_utils, find_packed_sequence_indices=unpacked, is_tracing=traced, fast_all=full):
        yield


@contextmanager
def usual_numbers() -> Iterator[None]:
    """Answers to what models ask about numbers, which fake tensors do not have.

    Half-precision activations are all finite; as many tokens end each sequence.
    """

    def alike(counts: torch.Tensor) -> torch.Tensor:
        return counts[:1]

    with (
        mock.patch.object(FakeTensor, "__bool__", create=True, return_value=True),
        mock.patch.object(torch, "unique_consecutive", alike),
    ):
        yield
