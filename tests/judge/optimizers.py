"""Optimizers by themselves: the bytes that the real objects keep, and the peak of a step, over parameters of every kind.

`python -m tests.judge.optimizers` asks them all and writes tests/data/optimizers.json; beside the development dependencies it
needs torchao, galore-torch, apollo-torch, lion-pytorch, pytorch-optimizer and llama-cookbook, in the versions that the file
names. The tests ask anew those that are installed.

Parameters are fake tensors, and what updates them is played; where that needs a GPU (bitsandbytes, torchao) states are made on
tensors without data, and the step is not judged.
"""

from __future__ import annotations

import gc
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from bitsandbytes import functional
from bitsandbytes.optim.optimizer import GlobalOptimManager
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from estimator import Job
from estimator.contract.job.optimizer import IMPLEMENTATIONS, RANKS
from estimator.verify.live import Live, rounded
from estimator.verify.model import defaulting_to
from estimator.verify.optimizers import Optimizers, make_optimizer
from estimator.verify.step import settle_states, usual_numbers

FILE = Path(__file__).parent.parent / "data" / "optimizers.json"
TYPES = {"32-true": torch.float32, "bf16-true": torch.bfloat16}
LIBRARIES = (
    "torch",
    "transformers",
    "bitsandbytes",
    "torchao",
    "galore-torch",
    "apollo-torch",
    "lion-pytorch",
    "pytorch-optimizer",
    "llama-cookbook",
)
STATES_ONLY = ("bitsandbytes", "torchao")
"""Libraries whose kernels do not run on fake tensors."""
UNJUDGED = ("transformer-engine",)
"""Those that are not even made without a GPU: they are modelled from their source."""


class Layer(nn.Module):
    """Matrices of both orientations, vectors above and below the size from which states are quantized, and experts."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(320, 512, bias=False)
        self.down = nn.Linear(512, 320)
        self.norm = nn.Parameter(torch.zeros(320))
        self.wide = nn.Parameter(torch.zeros(4100))
        self.experts = nn.Parameter(torch.zeros(4, 64, 48))


class Model(nn.Module):
    """Two layers between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(120, 320)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(320, 120, bias=False)


def job_of(name: str, implementation: str, precision: str, **settings: Any) -> Job:
    """A job that asks for an optimizer."""
    rank = {"optimizer_rank": 16} if name in RANKS and name != "apollo-mini" else {"optimizer_rank": 1} if name in RANKS else {}
    training = {"precision": precision, "optimizer": name, "optimizer_implementation": implementation, **rank, **settings}
    return Job.model_validate({"model": "gpt2", "training": training})


def ask(name: str, implementation: str, precision: str) -> dict[str, int]:
    """Bytes of what is kept between steps, rounded as the allocator does, and of the peak of a step above that."""
    job = job_of(name, implementation, precision)
    if implementation in STATES_ONLY:
        return {"states": _kept(job, TYPES[precision])}
    live = Live()
    with FakeTensorMode(), usual_numbers():
        with defaulting_to(TYPES[precision]):
            model = Model()
        for p in model.parameters():
            p.grad = torch.empty_like(p)
            live.track(p.data)
            live.track(p.grad)
        before = live.bytes
        optimizer = make_optimizer(job, model)
        for state in optimizer.states():
            for tensor in filter(torch.is_tensor, state.values()):
                live.track(tensor)
        with live:
            optimizer.step()
            optimizer.step()
            settle_states(job, optimizer, live)
            kept, start = live.bytes - before, len(live.log)
            optimizer.step()
            peak = live.highest(start) - before - kept
        del model, optimizer
    gc.collect()
    return {"states": kept, "step": peak}


def _kept(job: Job, dtype: torch.dtype) -> int:
    """Of states that are made and never used: each storage once, step counts left out. Tensors have no data (`meta`)."""
    with defaulting_to(dtype), torch.device("meta"):
        model = Model()
    return _initialised(make_optimizer(job, model))


def kept_with_wide_embeddings(job: Job) -> int:
    """The same in bf16 of a bitsandbytes optimizer that is told of embeddings as the Trainer tells it."""
    with defaulting_to(torch.bfloat16), torch.device("meta"):
        model = Model()
    with mock.patch.object(GlobalOptimManager, "_instance", None):
        manager: Any = GlobalOptimManager.get_instance()
        manager.register_module_override(model.embed, "weight", {"optim_bits": 32})
        optimizer = make_optimizer(job, model)
        member: Any = optimizer.members[0]
        member.check_overrides()
        return _initialised(optimizer)


def _initialised(optimizer: Optimizers) -> int:
    with mock.patch.multiple(functional, get_paged=_managed, fill=_managed):
        _initialise(optimizer)
    storages = {}
    for state in optimizer.states():
        for name, value in state.items():
            for tensor in _inner(value) if name != "step" else []:
                storage = tensor.untyped_storage()
                storages[storage._cdata] = rounded(storage.nbytes())
    return sum(storages.values())


def _managed(*args: Any, **settings: Any) -> torch.Tensor:
    """In place of managed memory, which is none of the allocator's: nothing."""
    return torch.empty(0)


def _initialise(optimizer: Optimizers) -> None:
    """Make the states without a step."""
    for member in optimizer.members:
        made: Any = member
        for i, group in enumerate(made.param_groups):
            for j, p in enumerate(group["params"]):
                if hasattr(made, "init_state"):
                    made.init_state(group, p, i, j)
                else:
                    made.state[p] = {"exp_avg": made._new_buffer(p, True), "exp_avg_sq": made._new_buffer(p, False)}


def _inner(value: Any) -> list[torch.Tensor]:
    """The tensors that a state is made of."""
    if not isinstance(value, torch.Tensor):
        return []
    return [getattr(value, name) for name in getattr(value, "tensor_attrs", ())] or [value]


def main() -> None:
    """Ask about every optimizer."""
    lines = []
    for name, implementations in IMPLEMENTATIONS.items():
        for implementation in (by for by in implementations if by not in UNJUDGED):
            for precision in TYPES:
                said = ask(name, implementation, precision)
                lines.append(f'  "{name} {implementation} {precision}": {json.dumps(said)}')
                print(lines[-1], flush=True)
    versions = {library: version(library) for library in LIBRARIES}
    FILE.write_text('{"versions": ' + json.dumps(versions) + ',\n"counted": {\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
