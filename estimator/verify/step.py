"""One training step on fake tensors: full widths, no memory, and the bytes at the moments that an answer names."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import PreTrainedModel, masking_utils

from estimator.hardware.capability import gpu
from estimator.hardware.capacity import capacity
from estimator.job import Job
from estimator.specs.spec import ModelSpec
from estimator.verify.cuda import on_cuda
from estimator.verify.host import host_seen
from estimator.verify.live import Live, resizes_seen
from estimator.verify.model import autocast, build, freeze, make_scaler, ranks
from estimator.verify.offload import forward_offloaded, on_host
from estimator.verify.optimizers import Optimizers, make_optimizer

Counted = dict[str, int]
Log = list[tuple[int, str]]
"""Changes of the live bytes, each with the operation during which it happened."""


def fake_step(job: Job, spec: ModelSpec, logs: dict[str, Log] | None = None) -> Counted:
    """Bytes between steps, at the end of forward, and at the peaks of forward, backward and optimizer step.

    Counts the second step: by then the optimizer has its states. `logs` gets the changes of each phase.
    """
    card = gpu(job, capacity(job.hardware))
    live = Live(card)
    with (
        ranks(job.parallelism.data or 1) as mesh,
        FakeTensorMode(allow_non_fake_inputs=True),
        documents(job.training.attention_mask),
        on_cuda(card),
        on_host(),
        host_seen(live) if job.offload.parameters == "cpu" else nullcontext(),
    ):
        with mock.patch.object(PreTrainedModel, "initialize_weights"):  # fake tensors have no numbers to set
            model = build(job, spec, mesh)
        for tensor in [*model.parameters(), *model.buffers()]:
            live.track(tensor.data)
        optimizer = make_optimizer(job, model, live.outside_backward)
        for state in optimizer.states():  # AdaGrad has them from the start
            for tensor in filter(torch.is_tensor, state.values()):
                live.track(tensor)
        with usual_numbers(), resizes_seen(live), live:
            scaler = make_scaler(job, model, optimizer.members[0])
            play(job, spec, model, optimizer, scaler, live)
            settle_states(job, optimizer, live)
            freeze(model, job.training)
            counted = play(job, spec, model, optimizer, scaler, live, logs)
        del model, optimizer, scaler
    gc.collect()
    return counted


def untouched(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """An initialisation that leaves the tensor: the real one draws again until all numbers suit, and fake tensors have none."""
    return tensor


def play(
    job: Job,
    spec: ModelSpec,
    model: nn.Module,
    optimizer: Optimizers,
    scaler: Any,
    live: Live,
    logs: Any = None,
) -> Counted:
    """One step, with `live` counting."""
    training = job.training
    counted = {"resident": live.bytes, "forward_end": 0, "forward": 0, "backward": 0, "optimizer_step": 0}
    if live.offloaded:
        counted |= {"host_resident": live.host_bytes, "host": 0}
    host_from = len(live.host_log)

    def lap(phase: str, start: int) -> int:
        """The highest count since log entry `start`; the next lap's start."""
        counted[phase] = max(counted[phase], live.highest(start))
        if live.offloaded:
            counted["host"] = max(counted["host"], live.highest_on_host(host_from))
        if logs is not None:
            logs.setdefault(phase, []).extend(live.log[start:])
        return len(live.log)

    at = len(live.log)
    for _ in range(training.gradient_accumulation_steps):
        inputs = batch(job, spec, model)
        with autocast(job), forward_offloaded(job):
            result = model(**inputs)
        loss = result.loss
        counted["forward_end"] = live.bytes
        at = lap("forward", at)
        del result
        live.in_backward = True
        scaler.scale(loss).backward()
        live.in_backward = False
        del loss, inputs
        at = lap("backward", at)
    if training.gradient_clipping:
        if isinstance(model, FullyShardedDataParallel):
            model.clip_grad_norm_(1.0)
        else:
            scaler.unscale_(optimizer.members[0])
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    scaler.step(optimizer.members[0] if scaler.is_enabled() else optimizer)
    scaler.update()
    lap("optimizer_step", at)
    optimizer.zero_grad(set_to_none=training.zero_grad_to_none)
    return counted


def batch(job: Job, spec: Any, model: Any) -> dict[str, Any]:
    """What the model is called with: a batch of its main input, and labels."""
    training = job.training
    rows, tokens = training.micro_batch_size, training.sequence_length
    targets = (rows, training.target_length or tokens)
    made: dict[str, Any] = {}
    if model.main_input_name == "input_ids":
        made["input_ids"] = torch.randint(0, spec.vocab_size, (rows, tokens))
        if training.head == "sequence-classification" and model.config.is_encoder_decoder:
            _end(made["input_ids"], model.config.eos_token_id)
    elif model.main_input_name == "pixel_values":
        made["pixel_values"] = torch.rand(rows, spec.num_channels, spec.image_size, spec.image_size, dtype=model.dtype)
    else:
        made["input_features"] = torch.rand(rows, spec.num_mel_bins, 2 * spec.max_source_positions, dtype=model.dtype)
    if training.attention_mask == "padding":
        made["attention_mask"] = torch.ones((rows, tokens), dtype=torch.int64)
    if training.attention_mask == "packed":
        made["position_ids"] = torch.randint(0, tokens, (rows, tokens))
    if training.head in ("causal-lm", "masked-lm"):
        made["labels"] = made["input_ids"]
    elif training.head in ("seq2seq-lm", "speech-seq2seq-lm"):
        made["labels"] = torch.randint(0, spec.vocab_size, targets)
    elif training.head == "contrastive":
        shape = (rows, spec.num_channels, spec.image_size, spec.image_size)
        made |= {"pixel_values": torch.rand(shape, dtype=model.dtype), "return_loss": True}
    else:
        made["labels"] = torch.randint(0, training.labels or 2, (rows,))
    return made


def _end(ids: torch.Tensor, token: int) -> None:
    """End each sequence, and only there, by this token, which is what an encoder–decoder classifies by."""
    ids.masked_fill_(ids == token, 0)
    ids[:, -1].fill_(token)


def settle_states(job: Job, optimizer: Optimizers, live: Live) -> None:
    """Leave out what lies in the host's memory, and let steps pass where the first ones do less.

    Only a fused optimizer of torch's counts its steps where its parameters are (torch/optim/adam.py, `_init_group`); RAdam
    rectifies from the sixth on (torch/optim/radam.py, `rho_t > 5`).
    """
    fused = job.training.optimizer_implementation == "fused" and not job.training.precision.startswith("megatron")
    for state in optimizer.states():
        if isinstance(state.get("step"), torch.Tensor):
            if job.training.optimizer == "radam":
                state["step"] += 10
            if live.offloaded or not fused:
                live.forget(state["step"], offloaded=fused)


@contextmanager
def documents(kind: str = "none") -> Iterator[None]:
    """Batches hold one document in each sequence, without padding; or with `padding`, or several, `packed`.

    On fake tensors transformers cannot see that, and would build a mask to be safe.
    """

    def packed(position_ids: torch.Tensor) -> torch.Tensor | None:
        if kind != "packed":
            return None
        steps = torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1)
        return (steps != 1).cumsum(-1)

    def traced(tensor: Any = None) -> bool:
        return False

    def full(mask: torch.Tensor) -> bool:
        del mask
        return kind != "padding"

    with mock.patch.multiple(masking_utils, find_packed_sequence_indices=packed, is_tracing=traced, fast_all=full):
        yield


@contextmanager
def usual_numbers() -> Iterator[None]:
    """Answers to what models ask about numbers, which fake tensors do not have.

    Half-precision activations are all finite, and so are gradients; as many tokens end each sequence; norms that Adafactor reads
    are one.
    """
    plain_item = FakeTensor.item

    def item(tensor: torch.Tensor) -> Any:
        try:
            return plain_item(tensor)
        except DataDependentOutputException:
            return 1.0

    def step(scaler: Any, optimizer: Any, state: Any, *args: Any) -> None:
        optimizer.step(*args)

    def alike(counts: torch.Tensor) -> torch.Tensor:
        return counts[:1]

    with (
        mock.patch.object(FakeTensor, "__bool__", create=True, return_value=True),
        mock.patch.object(FakeTensor, "item", item, create=True),
        mock.patch.object(torch, "unique_consecutive", alike),
        mock.patch.object(torch.amp.GradScaler, "_maybe_opt_step", step),
    ):
        yield
