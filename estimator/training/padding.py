"""Batches that are padded or packed: which jobs get a mask of their own, and which are refused."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Training
from estimator.families.spec import ModelSpec


def batch_mask(training: Training, spec: ModelSpec) -> str:
    """The kind of mask that the batch has of its own. Raises `InvalidJob` and `NotModelled`."""
    asked, where = training.attention_mask, "training.attention_mask"
    if asked == "none":
        return asked
    if training.head != "causal-lm" or asked not in spec.can.batches:
        raise NotModelled(f"{asked} is not modelled for the {training.head} of {spec.model_type} yet; write none", where)
    if training.attention not in ("eager", "sdpa"):
        raise NotModelled(f"{training.attention} of sequences of several lengths is not modelled yet; write none", where)
    if training.loss == "chunked":
        raise Contradiction("torchtune's loss in chunks goes with full sequences; write none, or another loss", where)
    if asked == "packed" and training.micro_batch_size > 1:
        raise Contradiction("documents are packed in one sequence; write micro_batch_size: 1, and its whole length", where)
    return asked
