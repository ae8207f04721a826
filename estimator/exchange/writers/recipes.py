"""Jobs of training in the words of frameworks with loops of their own: litgpt, torchtune and NeMo Automodel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Job
from estimator.exchange.configuration import framework
from estimator.exchange.writers.shared import file, said_of_texts
from estimator.specs.resolve import resolve

ATTENTION, MLP, ALL = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj"), "all-linear"
UNITS = ("bf16-true", "16-true", "32-true")
"""Precisions that are one type for everything."""


def litgpt(job: Job) -> str:
    """litgpt's YAML of `litgpt finetune_lora` or `finetune_full`."""
    said_of_texts(job, "litgpt")
    training, tables, spec = job.training, framework("litgpt").tables, resolve(str(job.model)).spec
    if getattr(spec, "tie_word_embeddings", False):
        raise InvalidJob(
            f"litgpt fine-tunes {str(job.model)[:60]} with an output layer of its own, not with the embedding's", "model"
        )
    adapter = _adapter(job, ("lora",))
    said: dict[str, Any] = {"checkpoint_dir": f"checkpoints/{job.model}", "precision": training.precision}
    if training.quantization is not None:
        said["quantize"] = _named(tables["quantize"], training.quantization, "litgpt", "training.quantization")
    said |= {"devices": job.hardware.gpus, "num_nodes": job.hardware.nodes}
    if adapter is not None:
        names: Mapping[str, Any] = tables["targets"].get(spec.model_type, tables["targets"]["other"])
        said |= {"lora_r": adapter.rank, "lora_dropout": adapter.dropout}
        for name, theirs in names.items():
            layers = [theirs] if isinstance(theirs, str) else theirs
            said[f"lora_{name}"] = name != "head" if adapter.targets == ALL else all(one in adapter.targets for one in layers)
    sequences = training.micro_batch_size * training.gradient_accumulation_steps * job.hardware.gpus * job.hardware.nodes
    said["train"] = {
        "micro_batch_size": training.micro_batch_size,
        "global_batch_size": sequences,
        "max_seq_length": training.sequence_length,
    }
    optimizers = {"adamw_torch": "torch.optim.AdamW", "adam": "torch.optim.Adam", "sgd": "torch.optim.SGD"}
    bits = {"adamw-8bit": "AdamW8bit", "paged-adamw-8bit": "PagedAdamW8bit", "paged-adamw": "PagedAdamW"}
    optimizers |= {name: f"bitsandbytes.optim.{theirs}" for name, theirs in bits.items()}
    said["optimizer"] = {"class_path": _optimizer(job, optimizers, "litgpt")}
    return file(said, f"litgpt finetune_{'full' if adapter is None else 'lora'} --config FILE", job)


def torchtune(job: Job) -> str:
    """torchtune's YAML of a recipe of fine-tuning."""
    said_of_texts(job, "torchtune")
    training, adapter = job.training, _adapter(job, ("lora", "dora"))
    if training.precision not in UNITS:
        raise InvalidJob("torchtune has one type for everything: bf16-true or 32-true", "training.precision")
    folder, builder = _builder(str(job.model))
    model: dict[str, Any] = {"_component_": f"torchtune.models.{folder}.{'lora_' if adapter else ''}{builder}"}
    if adapter is not None:
        theirs = {"o_proj": "output_proj"}
        targets = [*ATTENTION, *MLP] if adapter.targets == ALL else adapter.targets
        model["lora_attn_modules"] = [theirs.get(one, one) for one in ATTENTION if one in targets]
        model |= {"apply_lora_to_mlp": all(one in targets for one in MLP), "apply_lora_to_output": "lm_head" in targets}
        model |= {"lora_rank": adapter.rank, "lora_dropout": adapter.dropout, "use_dora": adapter.type == "dora"}
        model["quantize_base"] = training.quantization is not None
    packed = training.attention_mask == "packed"
    said: dict[str, Any] = {"model": model, "tokenizer": {"max_seq_len": training.sequence_length}, "dataset": {"packed": packed}}
    said |= {"batch_size": training.micro_batch_size, "gradient_accumulation_steps": training.gradient_accumulation_steps}
    optimizers = {"adamw_torch": "torch.optim.AdamW", "adamw_torch_fused": "torch.optim.AdamW", "sgd": "torch.optim.SGD"}
    bits = {"paged-adamw": "PagedAdamW", "adamw-8bit": "AdamW8bit", "paged-adamw-8bit": "PagedAdamW8bit"}
    optimizers |= {name: f"bitsandbytes.optim.{theirs}" for name, theirs in bits.items()}
    said["optimizer"] = {"_component_": _optimizer(job, optimizers, "torchtune")}
    if training.optimizer_implementation == "fused":
        said["optimizer"]["fused"] = True
    said["optimizer_in_bwd"] = training.optimizer_in_backward
    losses = {"chunked": "torchtune.modules.loss.LinearCrossEntropyLoss", "eager": "torch.nn.CrossEntropyLoss"}
    said["loss"] = {"_component_": _named(losses, training.loss, "torchtune", "training.loss", backwards=False)}
    said["dtype"] = {"bf16-true": "bf16", "16-true": "fp16", "32-true": "fp32"}[training.precision]
    said["enable_activation_checkpointing"] = training.activation_checkpointing == "full"
    said["enable_activation_offloading"] = job.offload.activations == "cpu"
    if training.gradient_clipping:
        said["clip_grad_norm"] = 1.0
    parallel = job.parallelism
    if job.hardware.gpus * job.hardware.nodes > 1:
        said["fsdp_cpu_offload"] = job.offload.parameters == "cpu"
        said |= {"tensor_parallel_dim": parallel.tensor, "context_parallel_dim": parallel.context}
        if parallel.strategy == "hsdp":
            said["data_parallel_replicate_dim"] = parallel.replicas
    where = "distributed" if job.hardware.gpus * job.hardware.nodes > 1 else "single_device"
    start = f"tune run --nproc_per_node {job.hardware.gpus} " if where == "distributed" else "tune run "
    return file(said, f"{start}{'full' if adapter is None else 'lora'}_finetune_{where} --config FILE", job)


def nemo_automodel(job: Job) -> str:
    """NeMo Automodel's YAML of `automodel FILE`."""
    said_of_texts(job, "nemo-automodel")
    training, parallel, adapter = job.training, job.parallelism, _adapter(job, ("lora",))
    types = {"bf16-true": "bfloat16", "16-true": "float16", "bf16-mixed": "float32"}
    model = {"_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained", "pretrained_model_name_or_path": job.model}
    model["torch_dtype"] = _named(types, training.precision, "nemo-automodel", "training.precision", backwards=False)
    degrees = {"tp_size": parallel.tensor, "cp_size": parallel.context, "pp_size": parallel.pipeline, "ep_size": parallel.expert}
    spread: dict[str, Any] = {"strategy": "ddp" if parallel.strategy == "ddp" else "fsdp2"}
    spread |= {name: degree for name, degree in degrees.items() if degree and degree > 1}
    if parallel.strategy == "hsdp":
        spread["dp_replicate_size"] = parallel.replicas
    ranks = job.hardware.gpus * job.hardware.nodes // (parallel.tensor * parallel.context * parallel.pipeline) or 1
    sequences = training.micro_batch_size * training.gradient_accumulation_steps * ranks
    said: dict[str, Any] = {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "step_scheduler": {"local_batch_size": training.micro_batch_size, "global_batch_size": sequences},
        "model": model,
        "distributed": spread | {"activation_checkpointing": training.activation_checkpointing == "full"},
    }
    if adapter is not None:
        listed = (
            "*_proj" if adapter.targets == ALL else [f"*{one}" for one in adapter.targets]
        )  # match_all_linear: the output, too
        said["peft"] = {"_target_": "nemo_automodel.components._peft.lora.PeftConfig", "target_modules": listed}
        said["peft"] |= {"dim": adapter.rank, "dropout": adapter.dropout}
    losses = {"eager": "masked_ce.MaskedCrossEntropy", "cut": "linear_ce.FusedLinearCrossEntropy"}
    loss = _named(losses, training.loss, "nemo-automodel", "training.loss", backwards=False)
    said["loss_fn"] = {"_target_": f"nemo_automodel.components.loss.{loss}"}
    target = "nemo_automodel.components.datasets.llm.column_mapped_text_instruction_dataset.ColumnMappedTextInstructionDataset"
    said["dataset"] = {"_target_": target, "seq_length": training.sequence_length}
    optimizers = {"adamw_torch": "torch.optim.AdamW", "adam": "torch.optim.Adam", "sgd": "torch.optim.SGD"}
    said["optimizer"] = {"_target_": _optimizer(job, optimizers, "nemo-automodel")}
    return file(said, "automodel FILE", job)


def _adapter(job: Job, kinds: tuple[str, ...]) -> Any:
    """The adapter, of one of the kinds that a framework has."""
    adapter: Any = job.training.adapter
    if adapter is not None and adapter.type not in kinds:
        raise InvalidJob(f"{adapter.type} is not written for it: {' and '.join(kinds)} are", "training.adapter.type")
    return adapter


def _named(names: Mapping[str, str], ours: Any, to: str, field: str, backwards: bool = True) -> str:
    """Their name of a value of ours. `backwards`: the table is of their names."""
    known = {value: name for name, value in reversed(list(names.items()))} if backwards else names
    if ours not in known:
        raise InvalidJob(f"{to} has no {ours}: it has {', '.join(known)}", field)
    return known[ours]


def _optimizer(job: Job, names: Mapping[str, str], to: str) -> str:
    """The class of the optimizer, by a job's name or by transformers' where the implementation is a part of it."""
    training = job.training
    kind = str(training.optimizer)
    if kind == "adamw":
        kind = "adamw_torch_fused" if training.optimizer_implementation == "fused" else "adamw_torch"
    return _named(names, kind, to, "training.optimizer", backwards=False)


def _builder(model: str) -> tuple[str, str]:
    """torchtune's folder and builder of a model: the first that is of the same architecture."""
    spec = resolve(model).spec
    for folder, builders in framework("torchtune").tables["builders"].items():
        for builder, theirs in builders.items():
            if resolve(theirs).spec == spec:
                return folder, builder
    raise InvalidJob(f"torchtune has no builder of {model[:60]}", "model")
