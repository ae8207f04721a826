"""Megatron-Core's own fusion of the cross-entropy: what torch's compiler allocates for its parts, and what that is in a step."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from estimator import estimate

TOKENS, ENTRIES = 96, 512
WIDE = TOKENS * ENTRIES
JOB: dict[str, Any] = {
    "model": {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 32000,
    },
    "training": {"implementation": "megatron", "sequence_length": 2048},
}


def allocated(function: Callable[..., Any], *given: Any) -> list[str]:
    """The types of the buffers, as large as the logits, that a compiled function allocates."""
    from torch import compile as compiled
    from torch._inductor.utils import run_and_get_code

    _, codes = run_and_get_code(compiled(function), *given)
    called = "".join(code.partition("def call(")[2].partition("return (")[0] for code in codes)
    found = re.findall(r"empty_strided\w*\(\(([\d, ]+)\), \([\d, ]+\)(?:, device=\S+)?, torch\.(\w+)\)", called)
    sizes = [[int(size) for size in shape.split(",") if size.strip()] for shape, _ in found]
    return [kind for shape, (_, kind) in zip(sizes, found, strict=True) if ENTRIES in shape and TOKENS in shape]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs g++")
def test_what_the_compiler_allocates() -> None:
    import torch

    def largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = logits.float()
        return logits, logits.max(dim=-1)[0]

    def exponentials(logits: torch.Tensor, most: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits -= most.unsqueeze(-1)
        rows = torch.arange(TOKENS)
        predicted = logits.view(-1, ENTRIES)[rows, labels].clone()
        torch.exp(logits, out=logits)
        return predicted, logits.sum(dim=-1), logits

    def gradient(softmax: torch.Tensor, labels: torch.Tensor, masked: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        softmax.view(-1, ENTRIES)[torch.arange(TOKENS), labels] -= 1.0 - masked.view(-1).float()
        softmax.mul_(g.unsqueeze(-1))
        return softmax.to(torch.bfloat16)

    with torch.no_grad():
        labels, of_tokens = torch.zeros(TOKENS, dtype=torch.int64), (TOKENS, 1)
        wide = (TOKENS, 1, ENTRIES)
        assert allocated(largest, torch.zeros(wide, dtype=torch.bfloat16)) == ["float32"]
        assert allocated(exponentials, torch.zeros(wide), torch.zeros(of_tokens), labels) == []
        masked = torch.zeros(of_tokens, dtype=torch.bool)
        assert allocated(gradient, torch.zeros(wide), labels, masked, torch.zeros(of_tokens)) == ["float32", "bfloat16"]


def test_the_step_has_one_buffer_more() -> None:
    """Where the loss is the peak, by the float32 copy; what forward keeps is the same."""
    plain, compiled = (estimate({**JOB, "training": {**JOB["training"], "loss": loss}}) for loss in ("eager", "compiled"))
    assert compiled.memory.forward_end_bytes == plain.memory.forward_end_bytes
    assert compiled.memory.phases["backward"] - plain.memory.phases["backward"] == 4 * 2048 * 32000
