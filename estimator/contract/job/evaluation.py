"""Evaluation between training steps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from estimator.contract.job.part import Count, Length, Part


class Evaluation(Part):
    """Evaluation as transformers' Trainer runs it between two steps, with the optimizer's states kept where they are."""

    micro_batch_size: Count = Field(8, description="sequences per GPU and forward pass (per_device_eval_batch_size)")
    sequence_length: Length | None = Field(None, description="tokens; without it, as many as in training")
    keeps: Literal["loss", "logits"] = Field(
        "loss", description="what is gathered: losses alone (prediction_loss_only), or also logits and labels, for metrics"
    )
    generates: Length | None = Field(
        None,
        description="tokens that the model writes after each sequence (predict_with_generate), which are gathered with labels",
    )
    batches: Count = Field(
        1,
        description="batches gathered on the GPU before they move to the host: eval_accumulation_steps, or else all of the data",
    )
