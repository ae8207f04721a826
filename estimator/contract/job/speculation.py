"""How a served model's next tokens are guessed ahead, to be verified in one pass."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from estimator.contract.job.part import Count, Part, Storage

Draft = str | dict[str, Any]
"""A model that guesses, as `model` of a job names one."""
Guessed = Annotated[int, Field(ge=1, le=64)]


class Speculative(Part):
    """vLLM's speculative_config, by its own names."""

    method: Literal["ngram", "ngram_gpu", "draft_model", "eagle", "eagle3", "mtp"] = Field(
        "draft_model",
        description="what guesses: the text before (ngram, ngram_gpu), a smaller model, a head trained for it, or layers that "
        "the checkpoint ships (mtp)",
    )
    model: Draft | None = Field(
        None, description="of draft_model the smaller model; of eagle and eagle3 the head, without it one as wide as the model"
    )
    num_speculative_tokens: Guessed = Field(description="tokens that are guessed before each pass that verifies them")
    quantization: Storage | None = Field(
        None, description="how the smaller model's weights are stored; without it as its name says, else in 16 bits"
    )
    draft_vocab_size: Count | None = Field(
        None, description="of eagle3, tokens that the head chooses from; without it, 32,000 or those of the model if fewer"
    )
    draft_sample_method: Literal["greedy", "probabilistic"] = Field(
        "greedy", description="whether guesses are the likeliest tokens, or drawn, for which all their logits are kept"
    )
