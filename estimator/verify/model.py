"""The model of a job as its users would build it: transformers, peft, checkpointing, fully_shard."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import peft
import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from estimator.job import CheckpointForm, Job, Training
from estimator.specs.spec import ModelSpec

PEFT = {
    "causal-lm": "CAUSAL_LM",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
    "sequence-classification": "SEQ_CLS",
}
"""PEFT's `task_type` for each head that has one."""
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TRUE = {"32-true": torch.float32, "bf16-true": torch.bfloat16, "16-true": torch.float16}


AUTO = {
    "causal-lm": transformers.AutoModelForCausalLM,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "seq2seq-lm": transformers.AutoModelForSeq2SeqLM,
    "speech-seq2seq-lm": transformers.AutoModelForSpeechSeq2Seq,
    "sequence-classification": transformers.AutoModelForSequenceClassification,
    "image-classification": transformers.AutoModelForImageClassification,
    "contrastive": transformers.AutoModel,
    "features": transformers.AutoModel,
    "image-text-to-text": transformers.AutoModelForImageTextToText,
}
"""transformers' class for each head of a job."""


def config(spec: ModelSpec, attention: str, labels: int = 2) -> Any:
    """The Hugging Face config of an architecture."""
    fields = spec.config()
    made: Any = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields, num_labels=labels)
    made._attn_implementation = attention if spec.has_attention else "eager"
    made.pad_token_id = getattr(made, "pad_token_id", None) or 0
    parts = made, *(getattr(made, name) for name in made.sub_configs)
    for part in parts:
        part.use_cache = False
        for name in ("pad_token_id", "decoder_start_token_id"):
            if (getattr(part, name, None) or 0) >= getattr(part, "vocab_size", math.inf):
                setattr(part, name, 0)  # a small model's vocabulary has not the usual ones
    if getattr(made, "is_encoder_decoder", False) and getattr(made, "decoder_start_token_id", None) is None:
        made.decoder_start_token_id = made.pad_token_id
    return made


def build(job: Job, spec: ModelSpec, mesh: DeviceMesh | None = None) -> Any:
    """The model, ready to be trained as the job says."""
    training = job.training
    assert training.head is not None
    dtype = TRUE.get(training.precision, torch.float32)
    model = plain(spec, training.head, dtype, training.attention, training.labels or 2)
    if training.adapter:
        model = _adapted(model, training)
    model.train()
    if mesh is not None:
        _shard(model, job, mesh)
    _checkpoint(model, training)
    return model


def plain(spec: ModelSpec, head: str, dtype: torch.dtype, attention: str, labels: int = 2) -> Any:
    """The model with a head, as it is loaded."""
    with defaulting_to(dtype):
        model: Any = AUTO[head].from_config(config(spec, attention, labels))
    _keep_in_float32(model)
    if spec.config().get("tie_word_embeddings") is False:
        _untie(model)
    return model


def _keep_in_float32(model: Any) -> None:
    """What `from_pretrained` leaves in float32 whatever type it is asked for (`_keep_in_fp32_modules_strict`)."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if any(part in name for part in model._keep_in_fp32_modules_strict):
            tensor.data = tensor.data.float()


def _untie(model: Any) -> None:
    """Give the output layer a weight of its own.

    Some classes (T5's) tie it whatever their config says, and only loading a checkpoint that has both unties it
    (`PreTrainedModel.tie_weights`).
    """
    output = model.get_output_embeddings()
    if output is not None and output.weight is model.get_input_embeddings().weight:
        output.weight = nn.Parameter(torch.empty_like(output.weight))


@contextmanager
def defaulting_to(dtype: torch.dtype) -> Iterator[None]:
    """New tensors have this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _adapted(model: Any, training: Training) -> Any:
    asked = training.adapter
    assert asked is not None
    settings = peft.LoraConfig(
        r=asked.rank,
        target_modules=asked.targets,
        lora_dropout=asked.dropout,
        lora_alpha=2 * asked.rank,
        task_type=PEFT.get(training.head or ""),
        fan_in_fan_out=model.config.model_type == "gpt2",
    )
    # peft moves new matrices to the base layer's device and type; on fake tensors the move would replace the parameters;
    # and it copies the output layer of a classification
    staying = mock.patch.object(nn.Module, "to", lambda self, *args, **kwargs: self)
    copying = mock.patch.object(FakeTensor, "__deepcopy__", _copied)
    with defaulting_to(TYPES[asked.dtype]), staying, copying, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys")  # of parameters, which it looks for no more
        warnings.filterwarnings("ignore", "target_parameters=.* no parameter was matched")  # a mixture may have dense layers only
        return peft.get_peft_model(model, settings, autocast_adapter_dtype=False)


def _copied(parameter: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """As `nn.Parameter` copies itself. A fake parameter is none: torch would copy the bytes that it does not have."""
    copy = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
    memo[id(parameter)] = copy
    return copy


def stacks(model: nn.Module) -> list[nn.ModuleList]:
    """The stacks of layers: what is checkpointed and sharded layer by layer."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    return [m for m in lists if len(m) and all(isinstance(layer, GradientCheckpointingLayer) for layer in m)]


def _checkpoint(model: Any, training: Training) -> None:
    asked = training.activation_checkpointing
    without = {"use_reentrant": training.reentrant_checkpointing}
    if asked == "full":
        model.activation_checkpointing_enable(without)
    elif isinstance(asked, CheckpointForm) and asked.every:
        model.activation_checkpointing_enable(without, every_n_layers=asked.every)
    elif asked != "none":
        (stack,) = stacks(model)
        count = round(math.sqrt(len(stack))) if asked == "sqrt" else asked.segments  # type: ignore[union-attr]
        _segment(stack, math.ceil(len(stack) / max(1, count or 1)), training.reentrant_checkpointing)
        model.get_input_embeddings().register_forward_hook(lambda module, args, out: out.requires_grad_(True))


class Segment(nn.Module):
    """Layers in a row, recomputed as one."""

    def __init__(self, members: list[nn.Module], reentrant: bool):
        super().__init__()
        self.reentrant = reentrant
        self.members = nn.ModuleList(members)
        self.attention_type = "full_attention"

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        def run(hidden: torch.Tensor) -> Any:
            out: Any = hidden
            for member in self.members:
                out = member(out[0] if isinstance(out, tuple) else out, *args, **kwargs)
            return out

        return checkpoint(run, hidden, use_reentrant=self.reentrant)


def _segment(stack: nn.ModuleList, size: int, reentrant: bool) -> None:
    """Replace the layers of a stack by segments of `size`, a shorter one first."""
    members, rest = list(stack), len(stack) % size
    cuts = [0, *range(rest or size, len(members) + 1, size)]
    while len(stack):
        del stack[0]
    stack.extend(Segment(members[a:b], reentrant) for a, b in itertools.pairwise(cuts))


def _shard(model: Any, job: Job, mesh: DeviceMesh) -> None:
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if job.training.precision == "bf16-mixed" else None
    settings: dict[str, Any] = {"mesh": mesh} if policy is None else {"mesh": mesh, "mp_policy": policy}
    if job.offload.parameters == "cpu":
        settings["offload_policy"] = CPUOffloadPolicy()
    for layer in (layer for stack in stacks(model) for layer in stack):
        fully_shard(layer, reshard_after_forward=job.parallelism.reshard_after_forward, **settings)
    fully_shard(model, **settings)


@contextmanager
def ranks(world: int) -> Iterator[DeviceMesh | None]:
    """A process group of which only this rank exists: its collectives allocate, and say nothing."""
    if world == 1:
        yield None
        return
    init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield init_device_mesh("cpu", (world,))
    finally:
        destroy_process_group()


def autocast(job: Job, device: str = "cpu") -> Any:
    """What the forward pass runs in."""
    training = job.training
    if training.autocast:
        return torch.autocast(device, TRUE[training.precision])
    if training.precision != "bf16-mixed" or job.parallelism.strategy == "fsdp2":
        return nullcontext()
    return torch.autocast(device, torch.bfloat16)


def make_optimizer(job: Job, model: nn.Module) -> torch.optim.Optimizer:
    """torch's optimizer of that name and implementation, over what is trained."""
    trained = [p for p in model.parameters() if p.requires_grad]
    name, implementation = job.training.optimizer, job.training.optimizer_implementation
    flags: dict[str, Any] = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    if name in ("adamw", "adam"):
        return (torch.optim.AdamW if name == "adamw" else torch.optim.Adam)(trained, lr=1e-4, **flags)
    return torch.optim.SGD(trained, lr=1e-4, momentum=0.9 if name == "sgd-momentum" else 0.0, **flags)
