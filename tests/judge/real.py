"""One training step on real tensors, counted from what the CPU's allocator was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from estimator.contract.errors import NotModelled
from estimator.contract.job import Job
from estimator.families.spec import ModelSpec
from estimator.verify.batch import batch
from estimator.verify.cuda import on_cuda
from estimator.verify.live import rounded
from estimator.verify.model import build, remembers
from estimator.verify.optimizers import Optimizers, make_optimizer
from estimator.verify.playable import refuse_unplayable
from estimator.verify.routing import really_routed_evenly
from estimator.verify.step import Counted
from tests.judge.allocations import Lap, laps, watching
from tests.judge.dropout import fused_dropout

PHASES = ("forward", "backward", "optimizer_step")


PLAYED: dict[str, tuple[object, ...]] = {
    "precision": ("32-true",),
    "implementation": ("transformers",),
    "autocast": (False,),
    "float8": (None,),
    "quantization": (None,),
    "attention_mask": ("none",),
    "gradient_clipping": (False,),
    "zero_grad_to_none": (True,),
    "evaluation": (None,),
    "objective": (None,),
}
"""Settings of training of which some values only are played on real tensors."""


class Place(NamedTuple):
    """A process among others, which meet in a file."""

    rank: int
    world: int
    meeting: str


GENERATOR = 5056
"""Bytes of the CPU generator's state, which checkpointing keeps for each segment: in the host's memory, too."""


def real_step(job: Job, spec: ModelSpec, place: Place | None = None) -> Counted:
    """The same moments as `fake_step`, of the second step of a float32 model, at one place among real processes.

    Half precision is left to the fake tensors: the CPU's matrix products copy such tensors, which CUDA's do not. Raises
    `NotModelled` for it, and for what else is not played here.
    """
    _refuse_unplayable(job, spec)
    torch.manual_seed(0)
    with (
        on_cuda(),
        fused_dropout(),
        _processes(place) if job.parallelism.strategy == "ddp" else nullcontext(),
        ExitStack() as held,
    ):
        model = build(job, spec)
        optimizer = make_optimizer(job, model)
        held.enter_context(really_routed_evenly(model))
        _play(job, spec, model, optimizer)
        resident = sum(rounded(t.untyped_storage().nbytes()) for t in _held(model, optimizer))
        if job.parallelism.strategy == "ddp":
            model = _replicated(model, job.parallelism.gradient_as_bucket_view)
            _play(job, spec, model, optimizer)
            _play(job, spec, model, optimizer)  # in the second forward pass the reducer makes its buckets anew
            resident += sum(map(rounded, _buckets(model)))
        with watching() as watched:
            _play(job, spec, model, optimizer)
    return _counted(resident, laps(watched, PHASES))


def _refuse_unplayable(job: Job, spec: ModelSpec) -> None:
    """What `_play` would leave out, beside what is refused on fake tensors."""
    refuse_unplayable(job, spec, elsewhere=("parallelism.strategy", "parallelism.gradient_as_bucket_view"))
    training = job.training
    for name, played in PLAYED.items():
        if getattr(training, name) not in played:
            raise NotModelled(f"real tensors are played with {' or '.join(map(str, played))}", f"training.{name}")
    if training.optimizer == "radam":
        raise NotModelled("its first steps, which are played, do less than those from the sixth on", "training.optimizer")
    if remembers(training):
        raise NotModelled("states of what was trained before are played on fake tensors only", "training.trainable")
    if job.parallelism.strategy not in ("none", "ddp") or job.parallelism.tensor > 1:
        raise NotModelled("real tensors are played by one process, or under ddp", "parallelism.strategy")
    if any(where != "none" for _, where in job.offload):
        raise NotModelled("nothing is offloaded of real tensors", "offload")


def ddp_step(rank: int, world: int, meeting: str, job: Job, spec: ModelSpec) -> Counted:
    """The same in a process of its own, one of several that meet in a file."""
    return real_step(job, spec, Place(rank, world, meeting))


def _replicated(model: torch.nn.Module, gradient_as_bucket_view: bool) -> torch.nn.Module:
    """The model under DDP, which does not send its buffers round before each forward pass.

    What it would send is one copy of them, gone when forward begins. Gloo's thread may be the last to let go of that copy, and
    the profiler does not see what is freed there: 512 bytes too many from then on, in one step of twelve.
    """
    return DistributedDataParallel(model, gradient_as_bucket_view=gradient_as_bucket_view, broadcast_buffers=False)


@contextmanager
def _processes(place: Place | None) -> Iterator[None]:
    """A process group; of one rank where no other place is given. DDP holds the same, however many there are."""
    if place is None:
        store: Any = torch.distributed.HashStore()  # type: ignore[attr-defined]
        init_process_group("gloo", store=store, rank=0, world_size=1)
    else:
        init_process_group("gloo", init_method=f"file://{place.meeting}", rank=place.rank, world_size=place.world)
    try:
        yield
    finally:
        destroy_process_group()


def _buckets(model: Any) -> list[int]:
    """Bytes of each of DDP's buckets."""
    return [int(size) for size in model._get_ddp_logging_data()["bucket_sizes"].split(",")]


def _held(model: torch.nn.Module, optimizer: Optimizers) -> list[torch.Tensor]:
    """Parameters, buffers and optimizer states, without step counters that would lie in the host's memory."""
    counts_on_gpu = bool(optimizer.members[0].defaults.get("fused"))
    states = [t for state in optimizer.states() for name, t in state.items() if counts_on_gpu or name != "step"]
    states = [t for t in states if t is not None]
    plain = [t for module in model.modules() for t in vars(module).values() if isinstance(t, torch.Tensor)]
    return [*model.parameters(), *model.buffers(), *plain, *states]


def _play(job: Job, spec: ModelSpec, model: Any, optimizer: Optimizers) -> None:
    for _ in range(job.training.gradient_accumulation_steps):
        with record_function("forward"):
            inputs = batch(job, spec, getattr(model, "module", model))
            result = model(**inputs)
        loss = result.loss
        del result
        with record_function("backward"):
            loss.backward()
            del loss, inputs
    with record_function("optimizer_step"):
        optimizer.step()
    optimizer.zero_grad()


def _counted(resident: int, played: list[Lap]) -> Counted:
    counted = {"resident": resident, "forward_end": 0, "forward": 0, "backward": 0, "optimizer_step": 0}
    live = resident
    for lap in played:
        live += sum(_on_gpu(lap.between))
        *_, live = totals = list(accumulate(_on_gpu(lap.within), initial=live))
        counted[lap.name] = max(counted[lap.name], *totals)
        if lap.name == "forward":
            counted["forward_end"] = live
    return counted


def _on_gpu(sizes: list[int]) -> Iterator[int]:
    """The changes as CUDA's allocator rounds them."""
    return (rounded(abs(size)) * (1 if size > 0 else -1) for size in sizes if abs(size) != GENERATOR)
