"""Servers that are read but not modelled: what they are asked for, in the words of vLLM, which is.

text-generation-inference db931fcf42da, docs/source/reference/launcher.md. Its share of a card means something else than vLLM's,
so that no number of its own is carried over but the model's, the context's and the GPUs'.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from estimator.contract.errors import NotModelled

SERVERS: dict[str, tuple[str, str, str, str]] = {
    "text-generation-inference": (
        "model_id",
        "num_shard",
        "max_total_tokens",
        "it fills what a warm-up finds free (cuda_memory_fraction)",
    ),
}
"""Of each: its options of model, of GPUs and of the context, and how it takes memory."""


def refused(framework: str, options: Mapping[str, Any], words: list[str]) -> NotModelled | None:
    """What to say of such a command, and to ask instead; None of a program that is none of these."""
    if framework not in SERVERS:
        return None
    model, shards, context, takes = SERVERS[framework]
    named = options.get(model) or next((word for word in words if word != "serve"), None)
    if not isinstance(named, str):
        return NotModelled(
            f"{framework} is not modelled, and the command names no model; vllm, sglang, tensorrt-llm and llama.cpp are", "engine"
        )
    asked = f"vllm serve {shlex.quote(named[:100])}"
    for option, theirs in (("--tensor-parallel-size", shards), ("--max-model-len", context)):
        value = options.get(theirs)
        if isinstance(value, int) and not isinstance(value, bool):
            asked += f" {option} {value}"
    return NotModelled(f"{framework} is not modelled: {takes}. For the same model in vLLM ask: {asked}", "engine")
