"""The model of a job as its users would build it: transformers, peft, checkpointing, fully_shard."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from types import MethodType
from typing import Any
from unittest import mock

import torch
import transformers
from accelerate.utils import convert_to_fp32
from peft.utils.other import fsdp_auto_wrap_policy
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore

from estimator.contract.job import Bottleneck, Job, Training
from estimator.contract.job.adapter import PromptLearning
from estimator.contract.job.trainable import Trainable, numbers
from estimator.families.other import OtherSpec
from estimator.families.spec import ModelSpec
from estimator.verify import dinov3, eetq, fp8, nemotron_nas  # noqa: F401 (dinov3 and nemotron_nas register classes)
from estimator.verify.adapters import adapted
from estimator.verify.chunked import in_chunks, shifted
from estimator.verify.depth import keep
from estimator.verify.megatron import MegatronStep
from estimator.verify.prompts import prompted
from estimator.verify.pruning import pruned
from estimator.verify.recomputation import recompute, stacks
from estimator.verify.tensor import meshes_joined, of_data, parallelize

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TRUE = {
    "32-true": torch.float32,
    "bf16-true": torch.bfloat16,
    "16-true": torch.float16,
    "megatron-bf16": torch.bfloat16,
    "megatron-fp16": torch.float16,
}
MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


AUTO = {
    "causal-lm": transformers.AutoModelForCausalLM,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "seq2seq-lm": transformers.AutoModelForSeq2SeqLM,
    "speech-seq2seq-lm": transformers.AutoModelForSpeechSeq2Seq,
    "sequence-classification": transformers.AutoModelForSequenceClassification,
    "image-classification": transformers.AutoModelForImageClassification,
    "ctc": transformers.AutoModelForCTC,
    "audio-classification": transformers.AutoModelForAudioClassification,
    "contrastive": transformers.AutoModel,
    "features": transformers.AutoModel,
    "image-text-to-text": transformers.AutoModelForImageTextToText,
    "audio-text-to-text": transformers.AutoModelForMultimodalLM,
}
"""transformers' class for each head of a job."""
transformers.AutoModelForCausalLM.register(transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True)
"""Which it has, and leaves out of its table."""


def config(spec: ModelSpec, attention: str, labels: int = 2) -> Any:
    """The Hugging Face config of an architecture."""
    fields = spec.config()
    made: Any
    if isinstance(spec, OtherSpec):  # whose config is a file's, and read as one
        made = transformers.CONFIG_MAPPING[spec.model_type].from_dict({**fields, "num_labels": labels})
    else:
        made = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields, num_labels=labels)
    made._attn_implementation = attention if spec.has_attention else "eager"
    heard = getattr(made, "audio_config", None)
    if heard is not None and not spec.hears:
        heard._attn_implementation = "eager"  # what is only counted: chunks of Gemma 4's attend in no other way
    text = getattr(spec, "text_config", None)
    if isinstance(text, ModelSpec) and attention not in text.attentions:  # unasked each part attends in its own way
        made.text_config._attn_implementation = text.attentions[0]
    made.pad_token_id = getattr(made, "pad_token_id", None) or 0
    parts = made, *(getattr(made, name) for name in made.sub_configs)
    for part in filter(None, parts):  # of which a model may lack some
        part.use_cache = False
        for name in ("pad_token_id", "decoder_start_token_id"):
            if (getattr(part, name, None) or 0) >= (getattr(part, "vocab_size", None) or math.inf):
                setattr(part, name, 0)  # a small model's vocabulary has not the usual ones
    if (getattr(made, "image_token_id", None) or 0) >= (getattr(made.get_text_config(), "vocab_size", None) or math.inf):
        made.image_token_id = 1
    if spec.hears and (getattr(made, "audio_token_id", None) or math.inf) >= made.get_text_config().vocab_size:
        made.audio_token_id = 2
    if getattr(made, "is_encoder_decoder", False) and getattr(made, "decoder_start_token_id", None) is None:
        made.decoder_start_token_id = made.pad_token_id
    return made


def build(job: Job, spec: ModelSpec, mesh: DeviceMesh | None = None) -> Any:
    """The model, ready to be trained as the job says."""
    training = job.training
    if training.implementation == "torchtitan":
        from estimator.verify import torchtitan  # which is not among what verifying needs otherwise

        return torchtitan.build(job, spec, mesh)
    assert training.head is not None
    asked = training.dtypes.weights if training.dtypes else None
    dtype = TYPES[asked] if asked else TRUE.get(training.precision, torch.float32)
    model = plain(spec, training.head, dtype, training.attention, training.labels or 2)
    if training.quantization in ("fp8", "fp8-block"):
        fp8.replace(model, training)
    elif training.quantization == "eetq-int8":
        eetq.replace(model, training)
    elif training.quantization == "awq-int4":
        from estimator.verify import awq  # whose library is not among what verifying needs otherwise

        awq.replace(model, training)
    elif training.float8 or training.quantization:
        from estimator.verify import torchao  # which is not among what verifying needs otherwise

        (torchao.convert if training.float8 else torchao.quantize)(model, training)
    pruned(model, training)
    if training.loss == "chunked":
        in_chunks(model)
    elif training.loss == "shifted":
        model.loss_function = shifted
    if adapter := training.adapter:
        with defaulting_to(TYPES[adapter.dtype] if adapter.dtype else dtype):
            if isinstance(adapter, Bottleneck):
                from estimator.verify import bottleneck  # whose library runs with another release of transformers

                model = bottleneck.adapted(model, adapter)
            elif isinstance(adapter, PromptLearning):
                model = prompted(model, adapter)
            else:
                with eetq.installed() if training.quantization == "eetq-int8" else nullcontext():
                    model = adapted(model, adapter, training.head)
    if not remembers(training):
        freeze(model, training)
    model.train()
    if job.parallelism.strategy == "fsdp1":
        model = _flattened(model, job)
    elif mesh is not None:
        if job.parallelism.tensor > 1:
            parallelize(model, mesh["tensor"])
        if (data := of_data(mesh)) is not None:
            _shard(model, job, data)
    recompute(model, training, job.offload.activations != "none")
    return model


def plain(spec: ModelSpec, head: str, dtype: torch.dtype, attention: str, labels: int = 2) -> Any:
    """The model with a head, as it is loaded."""
    with defaulting_to(dtype):
        model: Any = AUTO[head].from_config(config(spec, attention, labels))
    if isinstance(spec, OtherSpec) and spec.kept is not None:
        keep(model, spec.kept)
    _keep_in_float32(model)
    if spec.config().get("tie_word_embeddings") is False and not getattr(spec, "tied", False):
        _untie(model)
    return model


def _keep_in_float32(model: Any) -> None:
    """What `from_pretrained` leaves in float32 whatever type is requested (`_keep_in_fp32_modules_strict`)."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if any(part in name for part in model._keep_in_fp32_modules_strict or ()):
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


def remembers(training: Training) -> bool:
    """Whether the optimizer keeps states of what is frozen now, having been trained before."""
    asked = training.trainable
    return isinstance(asked, Trainable) and asked.lisa is not None and asked.states == "kept"


def freeze(model: nn.Module, training: Training) -> None:
    """Leave to be trained what the job says, by the names that transformers gives; what its class freezes itself stays frozen."""
    if training.trainable == "all":
        return
    asked = training.trainable if isinstance(training.trainable, Trainable) else Trainable(names=[training.trainable])
    by_layer = asked.layers is not None or asked.last is not None
    layer_of = {id(p): (i, len(stack)) for stack in stacks(model) for i, layer in enumerate(stack) for p in layer.parameters()}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        named = any(f".{part}." in f".{name}." for part in asked.names or ())
        if id(parameter) in layer_of:
            number, count = layer_of[id(parameter)]
            chosen = number in numbers(asked.layers) if asked.layers else number >= count - asked.last if asked.last else True
            parameter.requires_grad_(named and chosen if asked.names else by_layer and chosen)
        else:
            parameter.requires_grad_(asked.outside or asked.lisa is not None or (named and not by_layer))
    extractor: Any = getattr(model.base_model, "feature_extractor", None)
    if extractor is not None and not any(p.requires_grad for p in extractor.parameters()):
        model.freeze_feature_encoder()  # type: ignore[operator]


def _shard(model: Any, job: Job, mesh: DeviceMesh) -> None:
    half = MIXED.get(job.training.precision)
    policy = MixedPrecisionPolicy(half, _reduced(job)) if half else None
    settings: dict[str, Any] = {"mesh": mesh} if policy is None else {"mesh": mesh, "mp_policy": policy}
    if job.offload.parameters == "cpu":
        settings["offload_policy"] = CPUOffloadPolicy()
    with meshes_joined():
        for layer in (layer for stack in [*stacks(model), *_not_checkpointed(model)] for layer in stack):
            fully_shard(layer, reshard_after_forward=job.parallelism.reshard_after_forward, **settings)
        fully_shard(model, **settings)


def _not_checkpointed(model: Any) -> list[nn.ModuleList]:
    """Stacks that Accelerate shards layer by layer, too, since the model names their class (`_no_split_modules`), and that
    transformers never recomputes (Mllama's tower)."""
    named, known = set(getattr(model, "_no_split_modules", None) or ()), stacks(model)
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) and not any(m is stack for stack in known)]
    return [m for m in lists if all(type(layer).__name__ in named for layer in m)]


def _reduced(job: Job) -> torch.dtype:
    """What a mixed-precision policy reduces gradients in."""
    asked = job.training.dtypes.gradients if job.training.dtypes else None
    return TYPES[asked or "fp32"]


def _flattened(model: Any, job: Job) -> Any:
    """The model in FSDP1 as Accelerate wraps it: each layer a unit, and by PEFT's policy each linear layer of an adapter."""
    layers = {type(layer) for stack in stacks(model) for layer in stack}
    policy: Any = ModuleWrapPolicy(layers)
    if job.training.adapter:
        with mock.patch.dict(os.environ, FSDP_TRANSFORMER_CLS_TO_WRAP=",".join(layer.__name__ for layer in layers)):
            policy = fsdp_auto_wrap_policy(model)
    half = MIXED.get(job.training.precision)
    mixed = MixedPrecision(half, _reduced(job)) if half else None
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=policy,
        mixed_precision=mixed,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE if job.parallelism.backward_prefetch else None,
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )


@contextmanager
def ranks(data: int, tensor: int = 1, replicas: int | None = None) -> Iterator[DeviceMesh | None]:
    """A process group of which only this rank exists: its collectives allocate, and say nothing. With `replicas` those of data
    are so many groups."""
    if data * tensor == 1:
        yield None
        return
    init_process_group("fake", store=FakeStore(), rank=0, world_size=data * tensor)
    try:
        shape = {"replicate": replicas or 1, "shard": data // (replicas or 1), "tensor": tensor}
        sizes = {name: size for name, size in shape.items() if size > 1}
        yield init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    finally:
        destroy_process_group()
        _clear_sharding_prop_cache()  # which knows meshes by their shape, and the groups of the first of that shape


def autocast(job: Job, device: str = "cpu") -> Any:
    """What the forward pass runs in."""
    training = job.training
    half = MIXED.get(training.precision)
    if training.autocast or (half is not None and job.parallelism.strategy not in ("fsdp1", "fsdp2", "hsdp")):
        return torch.autocast(device, half or TRUE[training.precision])
    return nullcontext()


def prepare(job: Job, model: Any) -> None:
    """Run the model's forward pass, and nothing else, in autocast, and widen what it returns, as accelerate prepares it."""
    forward, mixed = model.forward, job.training.precision == "bf16-mixed"

    @wraps(forward.__func__)
    def cast(self: Any, *args: Any, **kwargs: Any) -> Any:
        with autocast(job):
            made = forward(*args, **kwargs)
        return convert_to_fp32(made) if mixed else made

    model.forward = MethodType(cast, model)


def make_scaler(job: Job, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """torch's scaler of the loss, which does nothing but where float16 is mixed with float32; or Megatron's part in the step."""
    if job.training.precision.startswith("megatron"):
        asked = job.training.dtypes.gradients if job.training.dtypes else None
        wide = asked == "fp32" if asked else job.training.precision == "megatron-bf16"
        return MegatronStep(model, optimizer, wide, half=job.training.precision == "megatron-fp16")
    return torch.amp.GradScaler("cpu", enabled=job.training.precision == "16-mixed")
