"""A job: the question. One contract for Python, the command line, REST and the page.

Every field has a default that a practitioner would call sane, and every default that was used comes back in the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from estimator.errors import InvalidJob
from estimator.units import GB, parse_bytes, parse_count
from estimator.validation import explain

Count = Annotated[int, Field(ge=1, le=2**20)]
Tokens = Annotated[int, BeforeValidator(parse_count, json_schema_input_type=int | float | str), Field(ge=1, le=10**16)]
Bytes = Annotated[int, BeforeValidator(parse_bytes, json_schema_input_type=int | str), Field(ge=1, le=2**50)]
Place = Literal["none", "cpu", "nvme"]
Head = Literal[
    "causal-lm",
    "masked-lm",
    "seq2seq-lm",
    "speech-seq2seq-lm",
    "sequence-classification",
    "image-classification",
    "contrastive",
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Hardware(_Part):
    """What it runs on. Without a GPU or an amount of memory the answer has bytes, but no verdict."""

    gpu: str | None = Field(None, description="catalogue name or alias of the accelerator")
    memory: str | None = Field(None, description="memory of an unnamed card, as it is sold: 24GB")
    gpus: Count = Field(1, description="GPUs in a node")
    nodes: Count = Field(1, description="nodes")

    @model_validator(mode="after")
    def _one_kind(self) -> Hardware:
        if self.gpu and self.memory:
            raise ValueError("gpu and memory exclude each other: name the card, or say how large it is")
        if self.memory and not GB <= parse_bytes(self.memory) <= 2**44:
            raise ValueError(f"memory {self.memory} is not what a card has: write 1GB to 16TB")
        return self


class Adapter(_Part):
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


class CheckpointForm(_Part):
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


class Training(_Part):
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
    sequence_length: Annotated[int, Field(ge=1, le=2**24)] = Field(2048, description="tokens")
    target_length: Annotated[int, Field(ge=1, le=2**24)] | None = Field(
        None, description="tokens on the decoder's side of an encoder-decoder; without it, as many as sequence_length"
    )
    head: Head | None = Field(None, description="output layer and loss; without it, the model's usual one")
    labels: Annotated[int, Field(ge=2, le=2**20)] | None = Field(None, description="classes of a classification; without it, 2")
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


class Parallelism(_Part):
    """How it is spread over GPUs. Degrees multiply to the number of GPUs; `data` fills what the others leave."""

    strategy: Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2", "hsdp"] | None = None
    data: Count | None = None
    tensor: Count = 1
    pipeline: Count = 1
    context: Count = 1
    expert: Count = 1
    reshard_after_forward: bool = True
    gradient_as_bucket_view: bool = False


class Offload(_Part):
    """What lives outside the GPU."""

    optimizer: Place = "none"
    parameters: Place = "none"
    gradients: Place = "none"
    activations: Place = "none"


class Serving(_Part):
    """How it is served."""

    engine: Literal["vllm", "transformers"] = "vllm"
    weights: Literal["bf16", "fp16", "fp32", "int8", "nf4", "nf4-double", "fp4"] = "bf16"
    kv_cache: Literal["bf16", "fp16", "fp32"] = "bf16"
    context: Annotated[int, Field(ge=1, le=2**24)] = Field(4096, description="tokens per sequence, prompt and answer together")
    concurrency: Annotated[int, Field(ge=1, le=2**20)] = Field(1, description="sequences at the same time")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    hours: Annotated[float, Field(gt=0, le=10**6)] | None = Field(None, description="how long it is served, for the cost")


class Job(_Part):
    """The whole question."""

    model: str | dict[str, Any] = Field(
        description="name or alias, size such as 13B, path to a config.json or spec, or an inline architecture"
    )
    task: Literal["train", "serve"] = "train"
    hardware: Hardware = Hardware()
    training: Training = Training()
    parallelism: Parallelism = Parallelism()
    offload: Offload = Offload()
    serving: Serving = Serving()


def read_job(job: Job | Mapping[str, Any] | str | Path) -> Job:
    """A job from a `Job`, a mapping, or the path of a YAML file. Raises `InvalidJob`."""
    if isinstance(job, Job):
        return job
    if isinstance(job, Mapping):
        return _validated(job, "")
    from estimator.catalogue import read_text

    return job_from_text(read_text(Path(job)), str(job))


def job_from_text(text: str, where: str) -> Job:
    """A job from YAML or JSON text. Raises `InvalidJob`."""
    from estimator.catalogue import parse_yaml

    content = parse_yaml(text, where)
    if not isinstance(content, Mapping):
        raise InvalidJob("holds no mapping; a job begins with 'model:'", where)
    return _validated(content, where)


def _validated(content: Mapping[str, Any], where: str) -> Job:
    try:
        return Job.model_validate(dict(content))
    except ValidationError as error:
        raise InvalidJob(explain(error, Job), where) from None


def defaults_used(given: Job, settled: Job) -> list[str]:
    """'training.optimizer = adamw' for every field that was not given, with the value that it got.

    Those of the other task are left out.
    """
    other = "serving." if settled.task == "train" else "training."
    return [used for used in _defaults(given, settled, "") if not used.startswith(other)]


def _defaults(given: BaseModel, settled: BaseModel, prefix: str) -> Iterator[str]:
    for name in type(given).model_fields:
        before, value = getattr(given, name), getattr(settled, name)
        if isinstance(before, BaseModel):
            yield from _defaults(before, value, f"{prefix}{name}.")
        elif name not in given.model_fields_set and value is not None:
            yield f"{prefix}{name} = {str(value).lower() if isinstance(value, bool) else value}"
