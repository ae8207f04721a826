"""One training step on real tensors, counted from what the CPU's allocator was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import accumulate
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from estimator.job import Job
from estimator.specs.spec import ModelSpec
from tests.judge.cuda import on_cuda
from tests.judge.live import rounded
from tests.judge.model import build, make_optimizer
from tests.judge.step import Counted

PHASES = ("forward", "between", "backward", "optimizer_step")
NUMBER = 8
"""Bytes of a number of Python's as torch's operations take it: with a GPU, too, it lies in the host's memory."""
GENERATOR = 5056
"""Bytes of the CPU generator's state, which checkpointing keeps for each segment: in the host's memory, too."""


def real_step(job: Job, spec: ModelSpec) -> Counted:
    """The same moments as `fake_step`, of the second step of a float32 model.

    Half precision is left to the fake tensors: the CPU's matrix products copy such tensors, which CUDA's do not.
    """
    torch.manual_seed(0)
    with on_cuda(), _alone() if job.parallelism.strategy == "ddp" else nullcontext():
        model = build(job, spec)
        optimizer = make_optimizer(job, model)
        _play(job, spec, model, optimizer)
        resident = sum(rounded(t.untyped_storage().nbytes()) for t in _held(model, optimizer))
        if job.parallelism.strategy == "ddp":
            model = DistributedDataParallel(model, gradient_as_bucket_view=job.parallelism.gradient_as_bucket_view)
            _play(job, spec, model, optimizer)
            _play(job, spec, model, optimizer)  # in the second forward pass the reducer makes its buckets anew
            resident += sum(map(rounded, _buckets(model)))
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            _play(job, spec, model, optimizer)
    return _counted(resident, profiler.profiler.kineto_results.experimental_event_tree())


@contextmanager
def _alone() -> Iterator[None]:
    """A process group of one rank. DDP holds the same, however many there are."""
    store: Any = torch.distributed.HashStore()  # type: ignore[attr-defined]
    init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        destroy_process_group()


def _buckets(model: Any) -> list[int]:
    """Bytes of each of DDP's buckets."""
    return [int(size) for size in model._get_ddp_logging_data()["bucket_sizes"].split(",")]


def _held(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Parameters, buffers and optimizer states, without step counters that would lie in the host's memory."""
    counts_on_gpu = bool(optimizer.defaults.get("fused"))
    states = [t for state in optimizer.state.values() for name, t in state.items() if t is not None]
    states = [t for t in states if counts_on_gpu or t.ndim]
    return [*model.parameters(), *model.buffers(), *states]


def _play(job: Job, spec: ModelSpec, model: Any, optimizer: torch.optim.Optimizer) -> None:
    training = job.training
    for _ in range(training.gradient_accumulation_steps):
        with record_function("forward"):
            ids = torch.randint(0, spec.vocab_size, (training.micro_batch_size, training.sequence_length))
            result = model(input_ids=ids, labels=ids, use_cache=False)
        with record_function("between"):
            loss = result.loss
            del result
        with record_function("backward"):
            loss.backward()
            del loss, ids
    with record_function("optimizer_step"):
        optimizer.step()
    optimizer.zero_grad()


def _counted(resident: int, roots: list[Any]) -> Counted:
    events = sorted(_walk(roots), key=lambda event: event.start_time_ns)
    counted = {"resident": resident, "forward_end": 0, "forward": 0, "backward": 0, "optimizer_step": 0}
    live = resident
    for phase in (event for event in events if event.tag != _EventType.Allocation):
        within = range(phase.start_time_ns, phase.end_time_ns)
        sizes = [e.extra_fields.alloc_size for e in events if e.tag == _EventType.Allocation and e.start_time_ns in within]
        changes = [rounded(abs(size)) * (1 if size > 0 else -1) for size in sizes if abs(size) not in (NUMBER, GENERATOR)]
        totals = list(accumulate(changes, initial=live))
        live = totals[-1]
        if phase.name != "between":
            counted[phase.name] = max(counted[phase.name], *totals)
        if phase.name == "forward":
            counted["forward_end"] = live
    return counted


def _walk(events: list[Any]) -> Iterator[Any]:
    """Allocations and phases, wherever they are nested."""
    for event in events:
        if event.tag == _EventType.Allocation or event.name in PHASES:
            yield event
        yield from _walk(event.children)
