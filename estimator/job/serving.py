"""How a model is served."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from estimator.job.part import Length, Part


class Serving(Part):
    """How it is served."""

    engine: Literal["vllm", "transformers"] = "vllm"
    weights: Literal["bf16", "fp16", "fp32", "int8", "nf4", "nf4-double", "fp4"] = "bf16"
    kv_cache: Literal["bf16", "fp16", "fp32"] = "bf16"
    context: Length = Field(4096, description="tokens per sequence, prompt and answer together")
    concurrency: Annotated[int, Field(ge=1, le=2**20)] = Field(1, description="sequences at the same time")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    hours: Annotated[float, Field(gt=0, le=10**6)] | None = Field(None, description="how long it is served, for the cost")
