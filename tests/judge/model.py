"""The model of a job as its users would build it: transformers, peft, checkpointing, fully_shard."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import peft
import torch
import transformers
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from estimator.job import CheckpointForm, Job, Training
from estimator.specs.spec import ModelSpec

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TRUE = {"32-true": torch.float32, "bf16-true": torch.bfloat16, "16-true": torch.float16}


def config(spec: ModelSpec, attention: str) -> transformers.PretrainedConfig:
    """The Hugging Face config of an architecture."""
    if spec.model_type == "gpt2":
        made: transformers.PretrainedConfig = transformers.GPT2Config(
            n_embd=spec.hidden_size,
            n_inner=spec.intermediate_size,
            n_layer=spec.num_hidden_layers,
            n_head=spec.num_attention_heads,
            vocab_size=spec.vocab_size,
            n_positions=spec.max_position_embeddings,
            activation_function=spec.hidden_act,
            tie_word_embeddings=spec.tie_word_embeddings,
            attn_pdrop=spec.attention_dropout,
            resid_pdrop=spec.hidden_dropout,
            embd_pdrop=spec.embedding_dropout,
        )
    else:
        names = set(ModelSpec.model_fields) - {"model_type", "attention_output_bias", "qk_norm", "hidden_dropout"}
        fields = {name: getattr(spec, name) for name in names - {"embedding_dropout"}}
        if spec.model_type == "qwen2":
            fields.pop("head_dim")
        made = transformers.AutoConfig.for_model(spec.model_type, **fields)
    made._attn_implementation = attention
    return made


def build(job: Job, spec: ModelSpec, mesh: DeviceMesh | None = None) -> nn.Module:
    """The model, ready to be trained as the job says."""
    training = job.training
    with defaulting_to(TRUE.get(training.precision, torch.float32)):
        model: Any = transformers.AutoModelForCausalLM.from_config(config(spec, training.attention))
    if training.adapter:
        model = _adapted(model, training)
    model.train()
    if mesh is not None:
        _shard(model, job, mesh)
    _checkpoint(model, training)
    return model


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
        lora_alpha=16,
        task_type="CAUSAL_LM",
        fan_in_fan_out=model.config.model_type == "gpt2",
    )
    # peft moves new matrices to the base layer's device and type; on fake tensors the move would replace the parameters
    with defaulting_to(TYPES[asked.dtype]), mock.patch.object(nn.Module, "to", lambda self, *args, **kwargs: self):
        return peft.get_peft_model(model, settings, autocast_adapter_dtype=False)


def layers(model: Any) -> nn.ModuleList:
    """The stack of decoder layers."""
    inner: Any = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    found = inner.transformer.h if hasattr(inner, "transformer") else inner.model.layers
    assert isinstance(found, nn.ModuleList)
    return found


def _checkpoint(model: Any, training: Training) -> None:
    asked = training.activation_checkpointing
    without = {"use_reentrant": False}
    if asked == "full":
        model.activation_checkpointing_enable(without)
    elif isinstance(asked, CheckpointForm) and asked.every:
        model.activation_checkpointing_enable(without, every_n_layers=asked.every)
    elif asked != "none":
        stack = layers(model)
        count = round(math.sqrt(len(stack))) if asked == "sqrt" else asked.segments  # type: ignore[union-attr]
        _segment(stack, math.ceil(len(stack) / max(1, count or 1)))
        model.get_input_embeddings().register_forward_hook(lambda module, args, out: out.requires_grad_(True))


class Segment(nn.Module):
    """Layers in a row, recomputed as one."""

    def __init__(self, members: list[nn.Module]):
        super().__init__()
        self.members = nn.ModuleList(members)
        self.attention_type = "full_attention"

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        def run(hidden: torch.Tensor) -> torch.Tensor:
            for member in self.members:
                hidden = member(hidden, *args, **kwargs)
            return hidden

        result = checkpoint(run, hidden, use_reentrant=False)
        assert isinstance(result, torch.Tensor)
        return result


def _segment(stack: nn.ModuleList, size: int) -> None:
    """Replace the layers of a stack by segments of `size`, a shorter one first."""
    members, rest = list(stack), len(stack) % size
    cuts = [0, *range(rest or size, len(members) + 1, size)]
    while len(stack):
        del stack[0]
    stack.extend(Segment(members[a:b]) for a, b in itertools.pairwise(cuts))


def _shard(model: Any, job: Job, mesh: DeviceMesh) -> None:
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if job.training.precision == "bf16-mixed" else None
    settings: dict[str, Any] = {"mesh": mesh} if policy is None else {"mesh": mesh, "mp_policy": policy}
    for layer in layers(model):
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


def autocast(job: Job) -> Any:
    """What the forward pass runs in."""
    if job.training.precision != "bf16-mixed" or job.parallelism.strategy == "fsdp2":
        return nullcontext()
    return torch.autocast("cpu", torch.bfloat16)


def make_optimizer(job: Job, model: nn.Module) -> torch.optim.Optimizer:
    """torch's optimizer of that name and implementation, over what is trained."""
    trained = [p for p in model.parameters() if p.requires_grad]
    name, implementation = job.training.optimizer, job.training.optimizer_implementation
    flags: dict[str, Any] = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    if name in ("adamw", "adam"):
        return (torch.optim.AdamW if name == "adamw" else torch.optim.Adam)(trained, lr=1e-4, **flags)
    return torch.optim.SGD(trained, lr=1e-4, momentum=0.9 if name == "sgd-momentum" else 0.0, **flags)
