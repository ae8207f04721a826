"""How a model is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from estimator.contract.job.adapter import Adapter
from estimator.contract.job.audio import Audio
from estimator.contract.job.dtypes import Dtypes
from estimator.contract.job.evaluation import Evaluation
from estimator.contract.job.fp8 import Fp8
from estimator.contract.job.images import Images
from estimator.contract.job.objective import OneObjective
from estimator.contract.job.optimizer import ALIASES, Implementation, Optimizer
from estimator.contract.job.part import Bytes, Count, Length, Part, Storage, Tokens
from estimator.contract.job.pruning import Pruning
from estimator.contract.job.run import Run
from estimator.contract.job.trainable import Trained

Head = Literal[
    "causal-lm",
    "masked-lm",
    "seq2seq-lm",
    "speech-seq2seq-lm",
    "sequence-classification",
    "image-classification",
    "ctc",
    "audio-classification",
    "contrastive",
    "image-text-to-text",
    "audio-text-to-text",
]
SENSING = ("image-text-to-text", "audio-text-to-text")
"""Those of language models that see or hear."""


Operations = Literal["torchtitan", "products", "attention"]


class CheckpointForm(Part):
    """Checkpointing that needs more than a word: one of these."""

    every: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        None, description="recompute each k-th layer; the others keep what they saved"
    )
    segments: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        None, description="split the layers in so many segments, each recomputed as a whole"
    )
    uniform: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        None, description="runs of so many layers, each recomputed as a whole (Megatron-LM's --recompute-method uniform)"
    )
    layers: Annotated[int, Field(ge=1, le=2**20)] | None = Field(None, description="recompute the first so many layers")
    operations: Operations | None = Field(
        None,
        description="recompute each layer, but keep the results of: every second matrix product and attention (torchtitan), all "
        "products and attention (products), or attention alone (attention)",
    )
    modules: Annotated[list[str], Field(min_length=1, max_length=8)] | None = Field(
        None,
        description="recompute these modules of each layer: mlp, self_attn, ... as transformers calls them, or core_attention; "
        "with implementation: megatron as --recompute-modules calls them",
    )
    mix: dict[Literal["full"] | Operations, Annotated[int, Field(ge=0, le=2**20)]] | None = Field(
        None, description="recompute the first layers, so many in each way, in this order: full, attention, torchtitan, products"
    )
    budget: Bytes | None = Field(
        None, description="bytes that activations may take at any moment on a GPU: the least is recomputed that meets it"
    )

    @model_validator(mode="after")
    def _just_one(self) -> CheckpointForm:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of every, segments, uniform, layers, operations, modules, mix and budget")
        if self.mix is not None and not any(self.mix.values()):
            raise ValueError("mix recomputes no layer: write activation_checkpointing none, or how many layers in which way")
        return self


class Bucket(Part):
    """Batches whose sequences have one length, and their share of all."""

    tokens: Length = Field(description="of each sequence of such a batch, padding included")
    share: Annotated[float, Field(gt=0, le=1)] = Field(description="of all batches; the shares sum to 1")


class Dataset(Part):
    """What the run processes, in rows."""

    rows: Tokens = Field(description="examples")
    row_tokens: Annotated[float, Field(gt=0, le=2**24)] = Field(description="tokens of a row on average")
    epochs: Annotated[float, Field(gt=0, le=10**4)] = Field(1.0, description="how often all of it is gone through")
    packed: bool = Field(True, description="several rows fill a sequence; false: each row is padded to one, or cut")


class Training(Part):
    """How the model is trained."""

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
    dtypes: Dtypes | None = Field(None, description="parts of the precision that are otherwise than its recipe has them")
    float8: Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"] | None = Field(
        None, description="products of the layers' linear modules in fp8: torchao's recipe (convert_to_float8_training)"
    )
    fp8: Fp8 | None = Field(None, description="the same by Transformer Engine, under implementation: megatron")
    tf32: bool = Field(
        False, description="float32 matrix products in TF32 (torch.backends.cuda.matmul.allow_tf32): time, no bytes"
    )
    optimizer: Optimizer = Field("adamw", description="which optimizer; names of transformers' Trainer are understood, too")
    optimizer_implementation: Implementation | None = Field(
        None, description="one of torch's three kinds, or a library; without it, the usual one: fused for adamw and adam"
    )
    optimizer_states: Literal["fp32", "bf16", "fp16"] | None = Field(
        None, description="type of the moments, which llama-cookbook's (bf16) and transformer-engine's (fp32) Adam let one choose"
    )
    optimizer_rank: Count | None = Field(
        None, description="rank to which GaLore and APOLLO project gradients; without it, 128, 256, and 1 for apollo-mini"
    )
    optimizer_wide_embeddings: bool = Field(
        False, description="embeddings keep 32-bit states beside bitsandbytes' 8-bit ones, as transformers' Trainer has it"
    )
    optimizer_in_backward: bool = Field(
        False, description="step for each parameter as soon as its gradient is there, and free that (a hook on the parameter)"
    )
    micro_batch_size: Count = Field(1, description="sequences per GPU and forward pass")
    sequence_length: Length = Field(2048, description="tokens")
    target_length: Length | None = Field(
        None, description="tokens on the decoder's side of an encoder-decoder; without it, as many as sequence_length"
    )
    images: Images | None = Field(
        None,
        description="images in each sequence, of a model that sees them; without it, text alone: the tower is loaded, not run",
    )
    audio: Audio | None = Field(
        None,
        description="clips in each sequence, of a model that hears them; without it, text alone: the tower is loaded, not run",
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
    attention: Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_triton"] = Field(
        "sdpa",
        description="how attention runs; flash_attention_triton: flash-attn 1's kernel in Triton, which llm-foundry ran",
    )
    attention_mask: Literal["none", "padding", "packed"] = Field(
        "none",
        description="whether sequences are padded, so that the batch has a mask of its own, or documents are packed in one",
    )
    loss: Literal["eager", "shifted", "chunked", "flash", "fused", "cut", "compiled"] = Field(
        "eager",
        description="how the loss is computed; shifted: of a copy of the logits in float32 without the last token's; "
        "flash: of the logits in their own type, whose gradient is written over them (flash-attn's cross-entropy); "
        "compiled: Megatron-Core's own fusion, with implementation: megatron",
    )
    implementation: Literal["transformers", "fast-kernels", "liger", "megatron", "torchtitan"] = "transformers"
    expert_capacity_factor: Annotated[float, Field(gt=0, le=64)] | None = Field(
        None,
        description="rows that each expert takes, relative to its share, and is padded to; without it, no token is dropped",
    )
    expert_imbalance: Annotated[float, Field(ge=1, le=1024)] = Field(
        1.0, description="rows of the fullest rank's experts relative to the mean, where there is no capacity factor"
    )
    mtp_num_layers: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="layers after the last that predict further tokens, under implementation: megatron (--mtp-num-layers)"
    )
    transformers_release: Literal["5", "4.48", "4.45"] = Field(
        "5", description="whose loss, and other operations that changed: those of transformers 5, of 4.46 to 4.49, or of before"
    )
    adapter: Adapter | None = None
    trainable: Trained = Field("all", description="which of the model's own parameters are trained; the others are frozen")
    pruning: Pruning | None = Field(None, description="masks over weights (torch.nn.utils.prune); without it, none")
    quantization: Storage | None = Field(None, description="storage of frozen weights")
    quantization_group: Count | None = Field(
        None, description="quantized weights that share a scale (bitsandbytes' blocksize); without it, as many as is usual"
    )
    quantized_experts: bool = Field(
        False,
        description="of a mixture, its experts' weights in the same 4 bits, too, unpacked while a layer's experts run "
        "(bitsandbytes' replace_parameter_4bit; axolotl's quantize_moe_experts)",
    )
    quantization_compute: Literal["bf16", "fp16", "fp32"] | None = Field(
        None, description="what 4-bit layers compute in (bnb_4bit_compute_dtype); without it, the type of the other weights"
    )
    unquantized: list[str] | None = Field(
        None,
        description="parts of the names of linear layers that are not quantized (llm_int8_skip_modules), or not in float8",
    )
    upcast_unquantized: Literal["none", "norms", "all"] = Field(
        "none",
        description="in float32 beside quantized weights: norms (TRL), all (peft.prepare_model_for_kbit_training)",
    )
    tokens: Tokens | None = Field(None, description="tokens that the whole run processes")
    dataset: Dataset | None = Field(None, description="the same, as rows and epochs")
    lengths: Annotated[list[Bucket], Field(min_length=1, max_length=64)] | None = Field(
        None, description="batches of several lengths: memory is that of the longest, which is sequence_length, time that of all"
    )
    run: Run = Field(Run(), description="what the whole run does beside its steps, by the clock")
    evaluation: Evaluation | None = Field(None, description="evaluation between steps; without it, none is counted")
    objective: OneObjective = Field(
        None, description="a loss over several models or answers, by its name or in full; without it (or sft), the head's own"
    )

    @model_validator(mode="before")
    @classmethod
    def _trainer_names(cls, given: Any) -> Any:
        """What transformers' Trainer calls an optimizer, as fields; and qlora, which is LoRA on weights in 4 bits."""
        if not isinstance(given, Mapping):
            return given
        if isinstance(adapter := given.get("adapter"), Mapping) and adapter.get("type") == "qlora":
            given = {**given, "adapter": {**adapter, "type": "lora"}, "quantization": given.get("quantization") or "nf4"}
        if isinstance(name := given.get("optimizer"), str) and name in ALIASES:
            return {**ALIASES[name], **{key: value for key, value in given.items() if key != "optimizer"}}
        return given

    @model_validator(mode="after")
    def _whole(self) -> Training:
        if self.tokens is not None and self.dataset is not None:
            raise ValueError("tokens and dataset exclude each other: both say how much the run processes")
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
    def mean_length(self) -> float:
        """Tokens of a sequence on average."""
        return sum(bucket.tokens * bucket.share for bucket in self.lengths) if self.lengths else float(self.sequence_length)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens of one forward pass on average, both answers of a pair counted."""
        return self.micro_batch_size * self.mean_length * (2 if self.objective and self.objective.pairs else 1)
