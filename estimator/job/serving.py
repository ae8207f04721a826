"""How a model is served."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from estimator.job.part import Count, Length, Part, Storage


class Serving(Part):
    """How it is served."""

    engine: Literal["vllm", "transformers"] = "vllm"
    weights: Literal["bf16", "fp16", "fp32"] | Storage = "bf16"
    weights_group: Count | None = Field(None, description="quantized weights that share a scale; without it, as many as is usual")
    unquantized: list[str] | None = Field(None, description="parts of the names of linear layers that are not quantized")
    kv_cache: Literal["bf16", "fp16", "fp32", "fp8"] = "bf16"
    context: Length = Field(4096, description="tokens per sequence, prompt and answer together")
    prompt_length: Length | None = Field(None, description="tokens of a prompt, for the time; without it, half of the context")
    output_length: Length | None = Field(
        None, description="tokens of an answer, for the time; without it, what is left of the context"
    )
    concurrency: Annotated[int, Field(ge=1, le=2**20)] = Field(1, description="sequences at the same time")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    hours: Annotated[float, Field(gt=0, le=10**6)] | None = Field(None, description="how long it is served, for the cost")

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of a prompt and of its answer, one at least of each."""
        prompt = self.prompt_length or max(1, self.context - (self.output_length or self.context // 2))
        return prompt, self.output_length or max(1, self.context - prompt)
