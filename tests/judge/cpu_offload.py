"""Record what torchao's `CPUOffloadOptimizer` allocates: whole steps on fake tensors, on a machine without a GPU.

    pip install torchao==0.18.0
    python -m tests.judge.cpu_offload

It prints one record per case of tests/cases/cpu_offload.yaml, for tests/data/cpu_offload.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from estimator import Job, estimate
from estimator.specs.resolve import resolve
from estimator.verify import step
from estimator.verify.live import Live
from estimator.verify.optimizers import CLASSES, Optimizers
from tests.jobs import cases, job_of


class Stream:
    """A stream of a GPU that there is not: everything happens at once."""

    def wait_stream(self, other: Any) -> None:
        del other

    def record_event(self) -> Stream:
        return self

    def synchronize(self) -> None:
        pass


def counted(case: dict[str, Any]) -> dict[str, int]:
    """What a step of a case allocates, on the GPU and on the host."""
    job = Job.model_validate(estimate(job_of(case)).job)
    lives: list[Live] = []

    class Seen(Live):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            lives.append(self)

    with _without_gpu(lives), mock.patch.object(step, "Live", Seen):
        return step.fake_step(job, resolve(job.model).spec, elsewhere=("offload",))


@contextmanager
def _without_gpu(lives: list[Live]) -> Iterator[None]:
    """torchao asks for a GPU's streams, and for pinned memory, which `Live` counts as the host's."""
    from torchao.optim import cpu_offload  # type: ignore[import-not-found, import-untyped, unused-ignore]

    plain = torch.empty_like

    def empty_like(x: Tensor, *args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        return lives[-1].empty_on_host(x, pinned=True) if pin_memory else plain(x, *args, **kwargs)

    def offloaded(job: Job, model: nn.Module, hooked: Any) -> Optimizers:
        kind = CLASSES[job.training.optimizer]
        settings = {"fused": True} if job.training.optimizer.startswith("adam") else {"momentum": 0.9, "foreach": True}
        frees = job.offload.gradients == "cpu"
        made = cpu_offload.CPUOffloadOptimizer(list(model.parameters()), kind, offload_gradients=frees, lr=1e-4, **settings)
        made.state = {}  # those of its members are looked at by themselves
        return Optimizers([made])

    def settled(job: Job, made: Any, live: Live) -> None:
        """Counters of what is updated on the host lie there, of the small parameters on the GPU."""
        fused = job.training.optimizer_implementation == "fused"
        for each in made.members[0].optim_dict.values():
            for state in each.state.values():
                if "step" in state:
                    live.forget(state["step"], offloaded=fused)

    patches = [
        mock.patch.object(cpu_offload, "get_available_devices", return_value=["cuda"]),
        mock.patch.multiple(torch.cuda, Stream=Stream, current_stream=lambda: None, stream=lambda stream: nullcontext()),
        mock.patch.object(Tensor, "record_stream"),
        mock.patch.object(torch, "empty_like", empty_like),
        mock.patch.multiple(step, make_optimizer=offloaded, settle_states=settled),
    ]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


if __name__ == "__main__":
    for case in cases("cpu_offload"):
        print(f"{json.dumps(case['name'])}: {json.dumps(counted(case))}", flush=True)
