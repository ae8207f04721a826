"""How a model is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from estimator.job.adapter import Adapter
from estimator.job.evaluation import Evaluation
from estimator.job.objective import OneObjective
from estimator.job.part import Bytes, Count, Length, Part, Tokens

Head = Literal[
    "causal-lm",
    "masked-lm",
    "seq2seq-lm",
    "speech-seq2seq-lm",
    "sequence-classification",
    "image-classification",
    "contrastive",
]


class CheckpointForm(Part):
    """Checkpointing that needs a number: one of these."""

    every: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        None, description="recompute each k-th layer; the others keep what they saved"
    )
    segments: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        None, description="split the layers in so many segments, each recomputed as a whole"
    )
    budget: Bytes | None = Field(None, description="bytes that activations may take")

    @model_validator(mode="after")
    def _just_one(self) -> CheckpointForm:
        if sum(v is not None for v in (self.every, self.segments, self.budget)) != 1:
            raise ValueError("give exactly one of every, segments and budget")
        return self


class Bucket(Part):
    """Batches of one length."""

    tokens: Length = Field(description="of each sequence of such a batch, padding included")
    share: Annotated[float, Field(gt=0, le=1)] = Field(description="of all batches; the shares sum to 1")


class Training(Part):
    """How it is trained."""

    precision: Literal[
        "32-true",
        "bf16-true",
        "16-true",
        "bf16-mixed",
        "16-mixed",
        "deepspeed-bf16",
        "deepspeed-fp16",
        "megatron-bf16",
        "megatron-fp16",
    ] = "bf16-mixed"
    optimizer: Literal["adamw", "adam", "sgd", "sgd-momentum"] = "adamw"
    optimizer_implementation: Literal["foreach", "fused", "forloop"] = "fused"
    micro_batch_size: Count = Field(1, description="sequences per GPU and forward pass")
    sequence_length: Length = Field(2048, description="tokens")
    target_length: Length | None = Field(
        None, description="tokens on the decoder's side of an encoder-decoder; without it, as many as sequence_length"
    )
    head: Head | None = Field(None, description="output layer and loss; without it, the model's usual one")
    labels: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        None, description="classes of a classification; without it, 2, and of a reward model 1"
    )
    gradient_accumulation_steps: Count = 1
    activation_checkpointing: Literal["none", "full", "sqrt", "selective"] | CheckpointForm = "full"
    reentrant_checkpointing: bool = Field(False, description="torch's older checkpointing (use_reentrant=True)")
    autocast: bool = Field(False, description="torch.autocast over weights that are in half precision already")
    gradient_clipping: bool = Field(False, description="clip gradients by their norm (torch.nn.utils.clip_grad_norm_)")
    expandable_segments: bool = Field(False, description="PYTORCH_ALLOC_CONF=expandable_segments:True")
    zero_grad_to_none: bool = Field(True, description="free gradients between steps (optimizer.zero_grad(set_to_none=True))")
    attention: Literal["eager", "sdpa", "flash_attention_2"] = "sdpa"
    loss: Literal["eager", "chunked", "fused"] = "eager"
    implementation: Literal["transformers", "fast-kernels", "liger", "megatron", "torchtitan"] = "transformers"
    transformers_release: Literal["5", "4.48", "4.45"] = Field(
        "5", description="whose loss, and other operations that changed: those of transformers 5, of 4.46 to 4.49, or of before"
    )
    adapter: Adapter | None = None
    quantization: Literal["nf4", "nf4-double", "fp4", "int8", "gptq-int4", "gptq-int4-ungrouped"] | None = Field(
        None, description="storage of frozen weights"
    )
    upcast_unquantized: Literal["none", "norms", "all"] = Field(
        "none",
        description="in float32 beside quantized weights: norms (TRL), all (peft.prepare_model_for_kbit_training)",
    )
    tokens: Tokens | None = Field(None, description="tokens that the whole run processes")
    lengths: Annotated[list[Bucket], Field(min_length=1, max_length=64)] | None = Field(
        None, description="batches of several lengths: memory is that of the longest, which is sequence_length, time that of all"
    )
    evaluation: Evaluation | None = Field(None, description="evaluation between steps; without it, none is counted")
    objective: OneObjective = Field(
        None, description="a loss over several models or answers, by its name or in full; without it (or sft), the head's own"
    )

    @model_validator(mode="after")
    def _whole(self) -> Training:
        if self.lengths and abs(sum(bucket.share for bucket in self.lengths) - 1) > 0.001:
            raise ValueError("the shares of lengths do not sum to 1")
        if self.lengths and "sequence_length" in self.model_fields_set and self.sequence_length != self.longest:
            raise ValueError(f"the longest of lengths is {self.longest}: leave sequence_length {self.sequence_length} out")
        return self

    @property
    def longest(self) -> int:
        """Tokens of the longest sequences."""
        return max(bucket.tokens for bucket in self.lengths) if self.lengths else self.sequence_length

    @property
    def tokens_per_pass(self) -> float:
        """Tokens of one forward pass on average, both answers of a pair counted."""
        mean = sum(bucket.tokens * bucket.share for bucket in self.lengths) if self.lengths else self.sequence_length
        return self.micro_batch_size * mean * (2 if self.objective and self.objective.pairs else 1)
