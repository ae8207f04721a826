"""Layers that predict further tokens under Megatron-Core: what they hold, save and compute, counted by hand from its source."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from estimator.contract.errors import WillItFitError
from estimator.contract.job import read_job
from estimator.pipeline.run import played
from estimator.simulation.trace import trace
from tests.measured_runs import B200, stages
from tests.megatron.test_stages import SMALL, SPARSE, folded_as_unrolled, job

TOKENS, H, V, F = 1024, 512, 8192, 1536
LINEAR = H * 2 * H + H * H + 3 * H * F
LAYER = LINEAR + 2 * H
AHEAD = LAYER + 2 * H * H + 3 * H
"""A layer, the projection of two to one, and three norms."""
SAVED_LAYER = 4 * 2 * H + 2 * 4 + 2 * (H + H // 2 + H // 2 + H) + 4 * 16 + 2 * 3 * F
"""Of a token: what two norms read and make; queries, keys, values, attention's result and its log-sum-exp; both products of the
feed-forward part."""
SAVED_AHEAD = 2 * (H + H + 2 * H + H + H) + 3 * 4 + 8
"""Embeddings, hidden states, both normalised; what the last norm reads, and its result; three norms' roots; ids."""
SAVED_LOSS = 4 * V + 1 + 8 + 4 + 4
"""The softmax, which labels are another rank's, their place, the mask, and the loss."""


def test_what_is_held() -> None:
    """On the last stage, and there the embedding, too."""
    alone = [_held(stages(job(SMALL, mtp_num_layers=count))) for count in (None, 1, 2)]
    assert [sum(count) - sum(alone[0]) for count in alone] == [0, AHEAD, 2 * AHEAD]
    plain, ahead = (_held(stages(job(SMALL, 4, {"pipeline": 4}, mtp_num_layers=count))) for count in (None, 1))
    assert [b - a for a, b in zip(plain, ahead, strict=True)] == [0, 0, 0, AHEAD + V * H]


def _held(simulated: list[Any]) -> list[int]:
    return [sum(p.total for p in stage.build.parameters) for stage in simulated]


@pytest.mark.parametrize("layers", [1, 3])
def test_what_is_saved(layers: int) -> None:
    """Logits of each layer ahead are there beside the model's own; attention also saves a random state of two numbers."""
    plain, ahead = (estimate(job(SMALL, mtp_num_layers=count)).memory for count in (None, layers))
    saved = [memory.forward_end_bytes - memory.resident_bytes for memory in (plain, ahead)]
    assert saved[1] - saved[0] == layers * (TOKENS * (SAVED_LAYER + SAVED_AHEAD + SAVED_LOSS) + 2 * 512)


def test_what_is_computed() -> None:
    """Three products for each parameter and token of the layer, its projection and the output layer, which is used again."""
    counted = []
    for count in (None, 1):
        run = played(read_job(job(SMALL, mtp_num_layers=count)), True)
        tape = trace(run.job, run.model.spec, run.place, B200).tape
        counted.append(sum(w.flops * (w.slot.total if w.slot else 1) for w in tape.work if w.operation == "mm"))
    assert counted[1] - counted[0] == 3 * 2 * TOKENS * (LINEAR + 2 * H * H + V * H)


@pytest.mark.slow
@pytest.mark.parametrize("recomputed", ["none", "full"])
@pytest.mark.parametrize("spread", [{}, {"tensor": 2, "pipeline": 2}], ids=str)
def test_folded_is_unrolled(spread: dict[str, Any], recomputed: str) -> None:
    asked = {"activation_checkpointing": recomputed, "mtp_num_layers": 2, "gradient_accumulation_steps": 3}
    folded_as_unrolled(job(SPARSE, 4 if spread else 1, spread, **asked))


def test_the_model_is_counted_without() -> None:
    assert estimate(job(SMALL, mtp_num_layers=1)).parameters == estimate(job(SMALL)).parameters


REFUSED: list[tuple[dict[str, int], dict[str, Any], str]] = [
    ({"context": 2}, {}, "context parallelism"),
    ({}, {"activation_checkpointing": {"uniform": 2}}, "runs of one layer only"),
    ({}, {"implementation": "transformers"}, "implementation: megatron"),
]


@pytest.mark.parametrize(("spread", "training", "said"), REFUSED)
def test_what_is_refused(spread: dict[str, int], training: dict[str, Any], said: str) -> None:
    with pytest.raises(WillItFitError, match=said):
        estimate(job(SMALL, 2 if spread else 1, spread, **{"mtp_num_layers": 1, **training}))
