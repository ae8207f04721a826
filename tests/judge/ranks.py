"""Real ranks: a model spread over processes of this machine, beside the same model in one, on real numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn

from estimator.families.spec import DecoderSpec
from estimator.verify.model import plain
from estimator.verify.tensor import parallelize

STEPS, TOKENS = 2, 32


def losses(spec: DecoderSpec, ranks: int, folder: Path) -> list[tuple[float, float]]:
    """The loss of each of a few steps: spread over ranks by tensor parallelism, and in one process."""
    spawn(_run, (spec, ranks, folder), nprocs=ranks)
    return [tuple(pair) for pair in json.loads((folder / "losses.json").read_text(encoding="utf-8"))]


def _run(rank: int, spec: DecoderSpec, ranks: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    models = [_model(spec), _model(spec)]
    parallelize(models[0], init_device_mesh("cpu", (ranks,)))
    torch.manual_seed(1)
    ids = torch.randint(0, spec.vocab_size, (2, TOKENS))
    found = []
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    for _ in range(STEPS):
        pair = [model(input_ids=ids, labels=ids, position_ids=torch.arange(TOKENS)[None]).loss for model in models]
        for loss, optimizer in zip(pair, optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append([loss.item() for loss in pair])
    if rank == 0:
        (folder / "losses.json").write_text(json.dumps(found), encoding="utf-8")
    distributed.destroy_process_group()


def _model(spec: DecoderSpec) -> Any:
    torch.manual_seed(0)
    return plain(spec, "causal-lm", torch.float32, "sdpa").train()
