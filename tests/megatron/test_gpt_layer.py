"""Megatron-LM's classic GPT: what a layer saves, by Korthikanti et al.'s closed forms (arXiv 2205.05198, table 2); refusals."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from estimator.contract.errors import WillItFitError
from estimator.contract.job import read_job
from estimator.pipeline.run import played

H, HEADS, TOKENS, SEQUENCES = 512, 8, 256, 2
SCORES = 5 * HEADS * TOKENS / H
SMALL = {"model_type": "gpt2", "n_embd": H, "n_head": HEADS, "n_positions": TOKENS, "vocab_size": 1024}
STATISTICS = 2 * 2 * 4
"""Bytes that two norms keep of a token, mean and deviation in float32 each, which the paper leaves out."""


def job(layers: int, tensor: int = 1, sequence: bool = False, **training: Any) -> dict[str, Any]:
    return {
        "model": {**SMALL, "n_layer": layers},
        "hardware": {"gpu": "a100-80gb", "gpus": tensor},
        "training": {
            "implementation": "megatron",
            "precision": "megatron-fp16",
            "micro_batch_size": SEQUENCES,
            "sequence_length": TOKENS,
            "activation_checkpointing": "none",
            "attention": "eager",
            **training,
        },
        "parallelism": {"tensor": tensor, "sequence": sequence if tensor > 1 else None},
    }


def saved(tensor: int, sequence: bool, checkpointing: str = "none", attention: str = "eager") -> float:
    """Bytes that one more layer saves, per token, sequence and width (s b h)."""

    def kept(layers: int) -> int:
        asked = job(layers, tensor, sequence, activation_checkpointing=checkpointing, attention=attention)
        phases = played(read_job(asked), True).simulation.phases.phases
        forward = next(phase for phase in phases if phase.name == "forward")
        return forward.end_bytes - forward.start_bytes

    parts = tensor if sequence else 1
    norms = 0 if checkpointing == "full" else STATISTICS * TOKENS * SEQUENCES / parts
    return (kept(5) - kept(4) - norms) / (TOKENS * SEQUENCES * H)


@pytest.mark.parametrize("t", [1, 2, 4])
def test_korthikanti(t: int) -> None:
    assert saved(t, False) == 10 + 24 / t + SCORES / t
    assert saved(t, False, "selective") == 10 + 24 / t
    assert saved(t, False, "full") == 2
    if t > 1:
        assert saved(t, True) == (34 + SCORES) / t
        assert saved(t, True, "selective") == 34 / t


def test_parameters_are_gpt_2s() -> None:
    own = estimate({**job(2), "training": {"sequence_length": TOKENS}}).parameters.total
    assert estimate(job(2)).parameters.total == own


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"attention": "flash_attention_2"}, "leave it out"), ({"precision": "bf16-true"}, "Megatron-Core's are")],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(WillItFitError, match=said):
        estimate(job(2, **changes))
