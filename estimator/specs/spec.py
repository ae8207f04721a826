"""A model's architecture: what a family needs to build it, under Hugging Face's names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from estimator.facts import Fact

Size = Annotated[int, Field(ge=1, le=2**31)]
Probability = Annotated[float, Field(ge=0, lt=1)]
ModelType = Literal["llama", "mistral", "qwen2", "qwen3", "gpt2"]


class ModelSpec(BaseModel):
    """The architecture of a decoder. Sizes count elements; dropout probabilities apply in training only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_type: ModelType
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    vocab_size: Size
    max_position_embeddings: Size
    hidden_act: Literal["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu"] = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: Size | None = None
    attention_dropout: Probability = 0.0
    hidden_dropout: Probability = 0.0
    embedding_dropout: Probability = 0.0

    @model_validator(mode="after")
    def _heads(self) -> ModelSpec:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2 and self.model_type != "gpt2":
            raise ValueError(f"head_dim {self.head_dim} is odd: rotary embeddings need pairs")
        if self.model_type == "gpt2" and self.head_dim * self.num_attention_heads != self.hidden_size:
            raise ValueError(f"hidden_size {self.hidden_size} is not head_dim {self.head_dim} x {self.num_attention_heads} heads")
        return self


class PublishedModel(BaseModel):
    """One file of model_specs/: a published checkpoint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    aliases: list[str]
    """The hub id first, then how people say it."""
    architecture: ModelSpec
    parameters: Fact
    """The published count, tied weights once, buffers apart."""
    dtype: Literal["float32", "float16", "bfloat16"]
    """What the published weights are stored in."""
    licence: str
    released: str
    source: str
    """Where the architecture was read."""
    as_of: str
