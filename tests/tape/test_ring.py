"""Ring attention: what Transformer Engine's library allocated around its kernels, which need a GPU (tests/data/ring.yaml)."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.megatron import ring
from estimator.tape import autograd, dtypes
from estimator.tape.attention import CUDNN
from estimator.tape.collectives import Group
from estimator.tape.gpu import Gpu
from estimator.tape.replay import PhaseBytes, replay
from estimator.tape.tape import Tape
from estimator.tape.tensor import empty
from tests.jobs import TESTS, content

CASES: list[dict[str, Any]] = content(TESTS / "data" / "ring.yaml")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['ranks']} ranks, heads of {case['q'][3]}")
def test_what_a_ring_allocates(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All but what the backward kernel holds within."""
    monkeypatch.setattr(ring, "CUDNN", CUDNN._replace(held=lambda *_: None))
    phases, tape = simulated(case)
    forward, backward = phases["forward"], phases["backward"]
    assert forward.end_bytes - forward.start_bytes == case["kept"]
    assert forward.peak_bytes - forward.start_bytes == case["forward"]
    assert backward.end_bytes - backward.start_bytes == case["made"]
    assert backward.peak_bytes - backward.start_bytes == case["backward"]
    own = 2 * sum(case[name][0] * case[name][1] * case[name][2] * case[name][3] for name in "kv")
    sent = {name: sum(one.nbytes for one in tape.traffic if one.phase == name) for name in ("forward", "backward")}
    assert sent == {"forward": (case["ranks"] - 1) * own, "backward": 2 * (case["ranks"] - 1) * own}


def simulated(case: dict[str, Any]) -> tuple[dict[str, PhaseBytes], Tape]:
    """Forward and backward, on queries, keys and values that are there before."""
    tape = Tape(Gpu((10, 0), True))
    tape.begin("load")
    tape.grad_enabled = True
    q, k, v = (empty(tape, tuple(case[name]), dtypes.bfloat16, name) for name in "qkv")
    q.requires_grad = k.requires_grad = v.requires_grad = True
    tape.begin("forward")
    out = ring.ring(q, k, v, Group("context", case["ranks"]), fused=True)
    tape.begin("between")
    gradient = empty(tape, out.shape, out.dtype, "gradient")
    tape.begin("backward")
    autograd.run_backward((out,), (gradient,))
    tape.begin("end")
    tape.finish()
    return {phase.name: phase for phase in replay(tape).phases}, tape
