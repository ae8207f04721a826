"""One training step on fake tensors: full widths, no memory, and the bytes at the moments that an answer names."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import PreTrainedModel, masking_utils

from estimator.contract.job import Job
from estimator.families.spec import ModelSpec
from estimator.hardware.capability import gpu
from estimator.hardware.capacity import capacity
from estimator.verify import objectives
from estimator.verify.batch import batch
from estimator.verify.cuda import on_cuda
from estimator.verify.evaluation import evaluate
from estimator.verify.generation import generate
from estimator.verify.host import host_seen
from estimator.verify.known import numbers, numbers_asked
from estimator.verify.live import Live
from estimator.verify.model import autocast, build, freeze, make_scaler, ranks, remembers
from estimator.verify.offload import forward_offloaded, on_host
from estimator.verify.optimizers import Optimizers, make_optimizer
from estimator.verify.patched import numbers_seen, resizes_seen, shapes_unseen, short_keys
from estimator.verify.pictures import pictures
from estimator.verify.playable import refuse_unplayable
from estimator.verify.pruning import track_products
from estimator.verify.routing import routed_evenly
from estimator.verify.views import real_strides

Counted = dict[str, int]
Log = list[tuple[int, str]]
"""Changes of the live bytes, each with the operation during which it happened."""


def fake_step(
    job: Job,
    spec: ModelSpec,
    logs: dict[str, Log] | None = None,
    elsewhere: Collection[str] = (),
    counting: Live | None = None,
) -> Counted:
    """Bytes between steps, at the end of forward, and at the peaks of forward, backward and optimizer step, of a job with its
    defaults.

    Counts the second step: by then the optimizer has its states. `logs` gets the changes of each phase. `elsewhere`: fields of
    the job, as `training.quantization`, that the caller has a way to run. `counting`: what counts, in place of what keeps sums
    alone. Raises `NotModelled` for a job that it would not run as it says.
    """
    refuse_unplayable(job, spec, elsewhere)
    card = gpu(job, capacity(job.hardware))
    live = counting or Live(card)
    with (
        ranks(job.parallelism.data or 1, job.parallelism.tensor, job.parallelism.replicas) as mesh,
        FakeTensorMode(allow_non_fake_inputs=True),
        documents(job.training.attention_mask),
        on_cuda(card),
        real_strides(),
        short_keys(),
        on_host(),
        host_seen(live) if job.offload.parameters == "cpu" else nullcontext(),
    ):
        with mock.patch.object(PreTrainedModel, "initialize_weights"):  # fake tensors have no numbers to set
            model = build(job, spec, mesh)
            called = objectives.Trainer(job, spec, model) if job.training.objective else model
        for tensor in [*called.parameters(), *called.buffers()]:
            live.track(tensor.data)
        optimizer = make_optimizer(job, model, live.outside_backward)
        track_products(called, live)
        for parameter in optimizer.parameters():
            live.track(parameter.data)
        for state in optimizer.states():  # AdaGrad has them from the start
            for tensor in filter(torch.is_tensor, state.values()):
                live.track(tensor)
        with (
            usual_numbers(live.guessed),
            numbers_asked(live),
            numbers_seen(live),
            resizes_seen(live),
            shapes_unseen(live),
            objectives.kernels(job, live),
            pictures(job, spec, live),
            routed_evenly(model, live),
            live,
        ):
            scaler = make_scaler(job, model, optimizer.members[0])
            played = _player(job)
            played(job, spec, called, optimizer, scaler, live)
            settle_states(job, optimizer, live)
            live.settled(optimizer)
            if remembers(job.training):
                freeze(model, job.training)
            between = evaluate(job, spec, called, live, logs) if job.training.evaluation else {}
            if job.training.objective and objectives.writes(job.training.objective):
                between = generate(job, spec, model, live, logs)
            counted = played(job, spec, called, optimizer, scaler, live, logs) | between
        del model, called, optimizer, scaler
    gc.collect()
    return counted


def _player(job: Job) -> Callable[..., Counted]:
    """What runs one step: torchtitan's trainer has its own."""
    if job.training.implementation != "torchtitan":
        return play
    from estimator.verify import torchtitan  # which is not among what verifying needs otherwise

    return torchtitan.play


def untouched(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """An initialisation that leaves the tensor: the real one draws again until all numbers suit, and fake tensors have none."""
    return tensor


def play(
    job: Job,
    spec: Any,
    model: Any,
    optimizer: Optimizers,
    scaler: Any,
    live: Live,
    logs: Any = None,
) -> Counted:
    """One step, with `live` counting."""
    training = job.training
    live.started(model)
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
        live.lapped(phase)
        return len(live.log)

    at = len(live.log)
    for micro_step in range(steps := training.gradient_accumulation_steps):
        if not job.parallelism.gradient_sync:
            model.set_requires_gradient_sync(micro_step + 1 == steps)
        inputs = model.batch(spec.vocab_size) if isinstance(model, objectives.Trainer) else batch(job, spec, model)
        with nullcontext() if isinstance(model, objectives.Trainer) else autocast(job), forward_offloaded(job):
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
        for member in optimizer.members:
            scaler.unscale_(member)
        if isinstance(model, FullyShardedDataParallel):
            model.clip_grad_norm_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    for stepped in optimizer.members if scaler.is_enabled() else [optimizer]:
        scaler.step(stepped)
    scaler.update()
    lap("optimizer_step", at)
    optimizer.zero_grad(set_to_none=training.zero_grad_to_none)
    return counted


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


def _asking() -> set[str]:
    """The function of a model's own code that asks for a number, if it is one of transformers' models."""
    frame = sys._getframe(2)
    name = frame.f_code.co_filename.replace("\\", "/")
    return {frame.f_code.co_qualname} if "/transformers/models/" in name else set()


@contextmanager
def usual_numbers(guessed: set[str] | None = None) -> Iterator[None]:
    """Answers to what models ask about numbers, which fake tensors do not have.

    Half-precision activations are all finite, and so are gradients; as many tokens end each sequence; norms that Adafactor reads
    are one. Tensors lie apart unless they share a storage, which FSDP1 asks. `guessed` gets the functions of transformers' models
    that were answered so.
    """
    plain_item, guessed = FakeTensor.item, set() if guessed is None else guessed
    plain_unique = torch.unique_consecutive

    def item(tensor: torch.Tensor) -> Any:
        if (known := numbers(tensor)) is not None:
            return known.item()
        try:
            return plain_item(tensor)
        except DataDependentOutputException:
            guessed.update(_asking())
            return True if tensor.dtype == torch.bool else 1.0

    def true(tensor: torch.Tensor) -> bool:
        if (known := numbers(tensor)) is not None:
            return bool(known)
        guessed.update(_asking())
        return True

    def address(tensor: torch.Tensor) -> int:
        return tensor.untyped_storage()._cdata + tensor.storage_offset() * tensor.element_size()

    def step(scaler: Any, optimizer: Any, state: Any, *args: Any) -> None:
        optimizer.step(*args)

    def alike(counts: torch.Tensor) -> Any:
        return counts[:1] if numbers(counts) is None else plain_unique(counts)

    with (
        mock.patch.object(FakeTensor, "__bool__", true, create=True),
        mock.patch.object(FakeTensor, "item", item, create=True),
        mock.patch.object(FakeTensor, "data_ptr", address, create=True),
        mock.patch.object(torch, "unique_consecutive", alike),
        mock.patch.object(torch.amp.GradScaler, "_maybe_opt_step", step),
    ):
        yield
