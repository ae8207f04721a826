"""Adapters: small trainable parts beside a frozen model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from estimator.job.part import Part


class Adapter(Part):
    """LoRA: small trainable matrices beside frozen linear layers."""

    type: Literal["lora"] = "lora"
    rank: Annotated[int, Field(ge=1, le=65536)] = 16
    targets: Literal["all-linear"] | list[str] = Field("all-linear", description="names of the adapted layers, or all-linear")
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _some_targets(self) -> Adapter:
        if not self.targets:
            raise ValueError("targets is empty: name at least one layer, or write all-linear")
        return self
