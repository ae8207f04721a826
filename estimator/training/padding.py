"""Batches whose sequences end early: which jobs get a mask of their own, and which are refused."""

from __future__ import annotations

from estimator.errors import InvalidJob, NotModelled
from estimator.job import Training
from estimator.specs.spec import ModelSpec

MASKED = frozenset({"llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "mixtral", "qwen3_moe"})
"""Model types whose masks of padded batches are judged."""


def is_padded(training: Training, spec: ModelSpec) -> bool:
    """Whether the batch has an attention mask of its own. Raises `NotModelled` for what has no model of it."""
    if training.attention_mask == "none":
        return False
    where = "training.attention_mask"
    if training.attention_mask == "packed":
        raise NotModelled("packed is not modelled yet; padding makes a mask as large with sdpa and eager", where)
    if training.head != "causal-lm" or spec.model_type not in MASKED:
        raise NotModelled(f"padding is not modelled for the {training.head} of {spec.model_type} yet; write none", where)
    if training.attention not in ("eager", "sdpa"):
        raise NotModelled(f"{training.attention} leaves padding out of its tensors, which is not modelled yet; write none", where)
    if training.loss == "chunked":
        raise InvalidJob("torchtune masks no padding with its loss in chunks; write none, or another loss", where)
    return True
