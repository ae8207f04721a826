"""Models as older releases of transformers ran them; Mixtral's experts with torch as judge, each sent as many tokens."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from estimator import Job
from estimator.families.build import Builder
from estimator.families.expert_loop import ExpertLoop
from estimator.families.mixtral import MixtralSpec
from estimator.parallel.topology import topology
from estimator.pipeline.defaults import with_defaults
from estimator.simulation.trace import trace
from estimator.specs.resolve import resolve
from estimator.tape import dtypes
from estimator.tape.autograd import run_backward
from estimator.tape.replay import replay
from estimator.tape.tape import Tape
from estimator.tape.tensor import empty
from estimator.verify.live import Live

TOKENS, HIDDEN, WIDTH, EXPERTS, USED = 512, 256, 384, 4, 2
SPEC = MixtralSpec.model_validate(
    {
        "model_type": "mixtral",
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 512,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": USED,
    }
)


class Loop(nn.Module):
    """The same block in torch."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        shapes = {"w1": (HIDDEN, WIDTH), "w2": (WIDTH, HIDDEN), "w3": (HIDDEN, WIDTH)}
        layers = [{name: nn.Linear(*shape, bias=False) for name, shape in shapes.items()} for _ in range(EXPERTS)]
        self.experts = nn.ModuleList(nn.ModuleDict(each) for each in layers)
        self.gate.weight.data = torch.eye(EXPERTS, HIDDEN)

    def expert(self, number: int, x: torch.Tensor) -> torch.Tensor:
        layers: Any = self.experts[number]
        x = F.silu(layers["w1"](x)) * layers["w3"](x)
        return layers["w2"](x)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        flat = hidden.view(-1, HIDDEN)
        logits = self.gate(flat)
        weights, chosen = torch.topk(F.softmax(logits, dim=1, dtype=torch.float32), USED, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(flat)
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for number in range(EXPERTS):
            place, rows = torch.where(mask[number])
            state = flat[None, rows].reshape(-1, HIDDEN)
            result = self.expert(number, state) * weights[rows, place, None]
            out.index_add_(0, rows, result)
        return out.view(hidden.shape)


def even() -> torch.Tensor:
    """Hidden states whose first numbers choose two experts for each token, in turn."""
    hidden = torch.zeros(1, TOKENS, HIDDEN)
    for token in range(TOKENS):
        hidden[0, token, [token % EXPERTS, (token + 1) % EXPERTS]] = 1.0
    return hidden


def counted(trained: bool) -> tuple[int, int, int]:
    """Bytes above the start: at the peak of forward, at its end, at the peak of backward."""
    block, live = Loop().requires_grad_(trained), Live()
    hidden, gradient = even().requires_grad_(), torch.zeros(1, TOKENS, HIDDEN)
    for tensor in (hidden, gradient, *block.parameters()):
        live.track(tensor.data)
    start, at = live.bytes, len(live.log)
    with mock.patch("estimator.verify.kernels.all_of", torch.ops.aten.nonzero.default), live:  # these tensors have numbers
        out = block(hidden)
        forward, end, at = live.highest(at), live.bytes, len(live.log)
        live.in_backward = True
        out.backward(gradient)
    return forward - start, end - start, live.highest(at) - start


def estimated(trained: bool, unrolled: bool) -> tuple[int, int, int]:
    tape = Tape()
    tape.begin("load")
    build = Builder(tape, dtypes.float32, unrolled=unrolled)
    block = ExpertLoop(SPEC, build)
    for parameter in build.parameters:
        parameter.tensor.requires_grad = trained
    hidden, gradient = (empty(tape, (1, TOKENS, HIDDEN), dtypes.float32) for _ in range(2))
    hidden.requires_grad = tape.grad_enabled = True
    tape.begin("forward")
    out = block(hidden)
    tape.begin("backward")
    run_backward((out,), (gradient,))
    tape.finish()
    load, forward, backward = replay(tape).phases
    return forward.peak_bytes - load.end_bytes, forward.end_bytes - load.end_bytes, backward.peak_bytes - load.end_bytes


@pytest.mark.parametrize("trained", [False, True])
def test_the_loop_allocates_what_torch_allocates(trained: bool) -> None:
    assert estimated(trained, unrolled=True) == counted(trained)
    assert estimated(trained, unrolled=False) == estimated(trained, unrolled=True)


@pytest.mark.parametrize("checkpointing", ["none", "full", "sqrt"])
@pytest.mark.parametrize("model_type", ["mixtral", "gpt_bigcode"])
def test_what_shares_a_slot_is_what_would_be_played(model_type: str, checkpointing: str) -> None:
    """With experts in a loop, and with keys and values that every layer returns."""
    sizes = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 512}
    training = {
        "precision": "bf16-true",
        "autocast": True,
        "activation_checkpointing": checkpointing,
        "reentrant_checkpointing": checkpointing != "none",
        "transformers_release": "4.48",
        "adapter": {"rank": 8, "targets": ["q_proj", "c_attn", "w1"], "dtype": "fp32"},
        "quantization": "nf4-double",
        "sequence_length": 256,
    }
    job = Job.model_validate({"model": {"model_type": model_type, **sizes}, "training": training})
    spec = resolve(job.model).spec
    job = with_defaults(job, spec)[0]
    folded, long = (replay(trace(job, spec, topology(job, spec), unrolled=unrolled).tape) for unrolled in (False, True))
    assert folded.phases == long.phases
