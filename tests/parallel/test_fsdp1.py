"""FSDP1 beside frozen layers: what of it torch cannot be asked with the installed transformers, or without a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.checkpoint import checkpoint

from estimator import Job, estimate
from estimator.parallel.fsdp1 import Fsdp1
from estimator.parallel.topology import topology
from estimator.simulation.trace import trace
from estimator.specs.resolve import resolve
from estimator.tape.replay import replay
from estimator.verify import model as verified
from estimator.verify.step import fake_step
from tests.jobs import job_of

LORA = {"rank": 16, "dtype": "fp32", "dropout": 0.1, "targets": ["q_proj", "v_proj"]}
FSDP1 = {"strategy": "fsdp1", "backward_prefetch": False}
RECIPES: list[dict[str, Any]] = [
    {"precision": "bf16-true", "gradient_clipping": True},
    {"precision": "bf16-mixed", "dtypes": {"weights": "bf16", "gradients": "bf16"}, "autocast": True},
]


class Recomputed(nn.Module):
    """A sharded layer in a checkpoint, as transformers ran it before release 5."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, hidden: torch.Tensor, **keywords: Any) -> Any:
        return checkpoint(partial(self.layer, **keywords), hidden, use_reentrant=True)


def around(model: Any, *_: Any) -> None:
    for stack in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for i, layer in enumerate(stack):
            stack[i] = Recomputed(layer) if isinstance(layer, FullyShardedDataParallel) else layer
    model.get_input_embeddings().register_forward_hook(lambda module, args, out: out.requires_grad_(True))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe["precision"])
def test_a_checkpoint_around_a_frozen_unit_keeps_every_layers_input_and_its_gradient(recipe: dict[str, Any]) -> None:
    training = {"reentrant_checkpointing": True, "adapter": LORA, **recipe}
    case = {"model": "llama-3.2-1b", "layers": 5, "training": training, "hardware": {"gpus": 2}, "parallelism": FSDP1}
    job = Job.model_validate(estimate(job_of(case)).job)
    spec = resolve(job.model).spec
    with mock.patch.object(verified, "recompute", around):
        counted = fake_step(job, spec)
    plain = Fsdp1.__init__
    with mock.patch.object(Fsdp1, "__init__", lambda self, *args, **more: plain(self, *args, **{**more, "around": True})):
        tape = trace(job, spec, topology(job, spec)).tape
    phases = [phase for phase in replay(tape).phases if phase.name != "load"]
    assert {phase.name: phase.peak_bytes for phase in phases} == {phase.name: counted[phase.name] for phase in phases}
