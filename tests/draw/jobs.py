"""A job drawn over every field: how it is spread first, then its model, then the rest by the table of fields."""

from __future__ import annotations

import random
from typing import Any

from estimator import InvalidJob
from estimator.contract.job import Job
from estimator.contract.job.audio import Audio
from estimator.contract.job.images import Images
from estimator.contract.job.optimizer import IMPLEMENTATIONS
from estimator.families import built, heads, spec_class
from estimator.specs.resolve import resolve
from tests.draw import models
from tests.draw.contract import NOTHING, Drawing, Own, choices

MODES = {"one": 50, "fsdp": 25, "tensor": 8, "data": 4, "megatron": 4, "torchtitan": 2, "serve": 7}
"""How jobs are spread, and how often."""
PLAYABLE = 0.9
"""Share of jobs without values that no judge can play."""
STRATEGIES = {
    "fsdp": ("fsdp2", "fsdp2", "fsdp1", "fsdp1", "hsdp"),
    "data": ("ddp", "zero1", "zero2", "zero3"),
    "tensor": ("none", "fsdp2"),
    "megatron": ("none", "ddp", "zero1"),
}
SCANS = ("mamba", "falcon_mamba")
"""Families that torch scans token by token, so that long sequences take minutes."""
PLAYED = {
    "quantization": ("torchao-int8", "torchao-fp8", "fp8", "fp8-block", "eetq-int8"),
    "optimizer_implementation": ("foreach", "fused", "forloop", "transformers"),
}
"""Values among which those are that a judge can play; of others it is the table that says which are not."""


def drawn(rng: random.Random, width: str = "small", only: str = "") -> dict[str, Any]:
    """A job. `only`: the mode or the families, with commas, that it must have, where it is given."""
    mode = only if only in MODES else rng.choices(list(MODES), list(MODES.values()))[0]
    model = _model(rng, width, only, served=mode == "serve")
    playable = rng.random() < PLAYABLE
    drawing = Drawing(rng, mode, playable, model, resolve(model).spec, OWN)
    drawing.degrees = _degrees(drawing)
    return _joined(drawing, drawing.part(Job))


def _model(rng: random.Random, width: str, only: str, served: bool) -> dict[str, Any]:
    """A model, of a family that is served where that is asked."""
    known = [kind for kind in models.kinds() if not served or getattr(spec_class(kind), "cached", False)]
    known = [kind for kind in known if kind in only.split(",")] or known
    while True:
        if width == "full":
            model = models.full(rng, rng.choice([name for name in models.named() if models.kind_of(name) in known]))
        else:
            model = models.small(rng, rng.choice(known))
        try:
            resolve(model)
        except InvalidJob:  # its values do not go together
            continue
        return model


def _degrees(drawing: Drawing) -> dict[str, Any]:
    """Degrees of parallelism that multiply to the number of GPUs."""
    rng, mode = drawing.rng, drawing.mode
    if mode in ("fsdp", "data"):
        data = rng.choice((2, 4, 8))
        return {"gpus": data, "data": data, "strategy": rng.choice(STRATEGIES[mode])}
    if mode == "tensor":
        tensor, strategy = rng.choice((2, 2, 4)), rng.choice(STRATEGIES["tensor"])
        data = 1 if strategy == "none" else 2
        return {"gpus": tensor * data, "data": data, "tensor": tensor, "strategy": strategy}
    if mode == "torchtitan":
        tensor, data = rng.choice((1, 2)), rng.choice((1, 2, 4))
        return {"gpus": tensor * data, "data": data, "tensor": tensor, "strategy": "fsdp2" if data > 1 else "none"}
    if mode == "megatron":
        tensor, pipeline, context, data = (rng.choice((1, 1, 2)) for _ in range(4))
        degrees = {"tensor": tensor, "pipeline": pipeline, "context": context, "data": data}
        strategy = rng.choice(("ddp", "zero1")) if data > 1 else "none"
        return degrees | {"gpus": tensor * pipeline * context * data, "strategy": strategy, "expert": data}
    if mode == "serve" and rng.random() < 0.2:
        return {"gpus": 2, "tensor": 2}
    return {"gpus": 1}


def _degree(name: str) -> Own:
    return lambda drawing, made: drawing.degrees.get(name, NOTHING)


def _layers(drawing: Drawing, made: dict[str, Any]) -> list[int]:
    return drawing.some(range(drawing.spec.depth), 2)


def _ranges(drawing: Drawing, made: dict[str, Any]) -> str:
    first = drawing.rng.randrange(drawing.spec.depth)
    return drawing.one(str(first), f"{first}-{drawing.spec.depth - 1}", "0")


def _linears(drawing: Drawing) -> list[str]:
    return [name.rpartition(".")[2] for name in built(drawing.spec).linears] or ["q_proj"]


def _parameters(drawing: Drawing) -> list[str]:
    """Names of parameters, from dot to dot, without what most end with."""
    names = [p.name.removesuffix(".weight").removesuffix(".bias") for p in built(drawing.spec).parameters]
    return [*names, *(name.partition(".")[0] for name in names)]


def _targets(drawing: Drawing, made: dict[str, Any]) -> Any:
    names = drawing.some(_linears(drawing))
    return drawing.one("all-linear", names, rf".*\.({'|'.join(names)})")


def _exclude(drawing: Drawing, made: dict[str, Any]) -> Any:
    names = drawing.some(_linears(drawing), 1)
    return drawing.one(names, rf".*\.{names[0]}")


def _saved(drawing: Drawing, made: dict[str, Any]) -> list[str]:
    outside = [p.name.rpartition(".")[0].rpartition(".")[2] for p in built(drawing.spec).parameters if p.slot is None]
    return drawing.some([*outside, "lm_head", "score", "classifier"], 2)


def _feedforward(drawing: Drawing, made: dict[str, Any]) -> Any:
    targets = made.get("targets", "all-linear")
    return drawing.some(targets if isinstance(targets, list) else _linears(drawing), 2)


def _trained_names(drawing: Drawing, made: dict[str, Any]) -> list[str]:
    return drawing.some([*_parameters(drawing), "bias"], 2)


def _unquantized(drawing: Drawing, made: dict[str, Any]) -> list[str]:
    return drawing.some(_linears(drawing), 2)


def _sequence(drawing: Drawing, made: dict[str, Any]) -> int:
    if drawing.spec.model_type in SCANS:
        return int(drawing.one(8, 20))
    return int(drawing.one(16, 64, 128, 333, 512))


def _of_images(drawing: Drawing) -> bool:
    return getattr(drawing.spec, "image_size", None) is not None


def _images(drawing: Drawing, made: dict[str, Any]) -> Any:
    return drawing.part(Images) if drawing.spec.sees else NOTHING


def _audio(drawing: Drawing, made: dict[str, Any]) -> Any:
    return drawing.part(Audio) if drawing.spec.hears or drawing.spec.listens else NOTHING


def _attention(drawing: Drawing, made: dict[str, Any]) -> str:
    ways = [way for way in drawing.spec.attentions if not (drawing.playable and way.startswith("flash"))]
    rare = [] if drawing.playable else ["flash_attention_3", "flash_attention_triton"]
    return str(drawing.one(*ways, *rare))


def _implementation(drawing: Drawing, made: dict[str, Any]) -> Any:
    if drawing.mode in ("megatron", "torchtitan"):
        return drawing.mode
    return NOTHING if drawing.playable else drawing.one("fast-kernels", "liger", "megatron", "torchtitan")


def _optimizer(drawing: Drawing, made: dict[str, Any]) -> str:
    simulated = [
        name for name, by in IMPLEMENTATIONS.items() if not drawing.playable or set(by) & {*PLAYED["optimizer_implementation"]}
    ]
    if drawing.mode in ("fsdp", "tensor", "megatron") and drawing.rng.random() < 0.7:
        return str(drawing.one("adamw", "adam", "sgd", "sgd-momentum"))
    return str(drawing.one(*simulated))


def _stepped_by(drawing: Drawing, made: dict[str, Any]) -> str:
    known = IMPLEMENTATIONS[made.get("optimizer", "adamw")]
    simulated = [by for by in known if by in PLAYED["optimizer_implementation"]]
    return str(drawing.one(*(simulated if drawing.playable and simulated else known)))


def _quantization(drawing: Drawing, made: dict[str, Any]) -> str:
    every = choices(type(Job.model_fields["training"].default).model_fields["quantization"].annotation)
    return str(drawing.one(*(PLAYED["quantization"] if drawing.playable else every)))


def _trainable(drawing: Drawing, made: dict[str, Any]) -> Any:
    from estimator.contract.job.trainable import Trainable

    if drawing.rng.random() < 0.15:
        return drawing.one("all", "bias")
    found = drawing.part(Trainable)
    return found or {"last": 1}


def _dtypes(drawing: Drawing, made: dict[str, Any]) -> Any:
    from estimator.contract.job import Dtypes

    return drawing.part(Dtypes) or {"gradients": "fp32"}


def _modules(drawing: Drawing, made: dict[str, Any]) -> list[str]:
    parts = [name.partition(".")[0] for name in built(drawing.spec).linears]
    return drawing.some([*parts, "core_attention", "mlp", "self_attn"], 2)


def _lengths(drawing: Drawing, made: dict[str, Any]) -> list[dict[str, Any]]:
    """Two, in place of the one of `sequence_length`."""
    made.pop("sequence_length", None)
    longest = 20 if drawing.spec.model_type in SCANS else int(drawing.one(128, 333))
    return [{"tokens": longest // 2, "share": 0.5}, {"tokens": longest, "share": 0.5}]


def _teacher(drawing: Drawing, made: dict[str, Any]) -> Any:
    return {**drawing.model, "num_hidden_layers": 2} if made.get("type") == "distillation" else NOTHING


def _reward(drawing: Drawing, made: dict[str, Any]) -> Any:
    return drawing.model if made.get("type") == "ppo" else NOTHING


OWN: dict[str, Own] = {
    "Job.model": lambda drawing, made: drawing.model,
    "Job.task": lambda drawing, made: "serve",
    "Hardware.gpus": _degree("gpus"),
    "Hardware.nodes": lambda drawing, made: NOTHING if drawing.degrees["gpus"] < 4 else _halved(drawing, made),
    "Training.head": lambda drawing, made: drawing.one(*heads(drawing.spec.model_type)),
    "Training.sequence_length": lambda drawing, made: NOTHING if _only_images(drawing) else _sequence(drawing, made),
    "Training.target_length": lambda drawing, made: drawing.one(50, 128),
    "Training.images": _images,
    "Training.audio": _audio,
    "Training.attention": _attention,
    "Training.implementation": _implementation,
    "Training.optimizer": _optimizer,
    "Training.optimizer_implementation": _stepped_by,
    "Training.quantization": _quantization,
    "Training.trainable": _trainable,
    "Training.dtypes": _dtypes,
    "Training.unquantized": _unquantized,
    "Training.lengths": _lengths,
    "Serving.unquantized": _unquantized,
    "CheckpointForm.modules": _modules,
    "LowRank.targets": _targets,
    "OnLayers.targets": _targets,
    "Ia3.targets": _targets,
    "Pruning.targets": _targets,
    "LowRank.layers": _layers,
    "OnLayers.layers": _layers,
    "LowRank.modules_to_save": _saved,
    "OnLayers.modules_to_save": _saved,
    "Ia3.modules_to_save": _saved,
    "Ia3.feedforward": _feedforward,
    "Lora.exclude": _exclude,
    "Dora.exclude": _exclude,
    "AdaLora.exclude": _exclude,
    "OnLayers.exclude": _exclude,
    "Ia3.exclude": _exclude,
    "Trainable.layers": _ranges,
    "Trainable.names": _trained_names,
    "Objective.teacher": _teacher,
    "Objective.reward": _reward,
    "Parallelism.strategy": lambda drawing, made: drawing.degrees.get("strategy", "none"),
    "Parallelism.data": _degree("data"),
    "Parallelism.tensor": _degree("tensor"),
    "Parallelism.pipeline": _degree("pipeline"),
    "Parallelism.context": _degree("context"),
    "Parallelism.expert": _degree("expert"),
    "Parallelism.expert_tensor": lambda drawing, made: 1,
    "Parallelism.replicas": lambda drawing, made: 2,
}
"""Fields whose values depend on the model, or on what else is drawn."""


def _halved(drawing: Drawing, made: dict[str, Any]) -> int:
    made["gpus"] = drawing.degrees["gpus"] // 2
    return 2


def _only_images(drawing: Drawing) -> bool:
    return (
        drawing.spec.model_type in ("vit", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "whisper", "clip")
        or drawing.spec.listens
    )


def _joined(drawing: Drawing, job: dict[str, Any]) -> dict[str, Any]:
    """What goes together, so that fewer jobs are refused."""
    training, spread = job.get("training", {}), job.get("parallelism", {})
    if training.get("quantization") and not training.get("adapter"):
        training["adapter"] = {"rank": 8}
    if not training.get("quantization"):
        for name in ("quantization_group", "quantization_compute", "quantized_experts", "upcast_unquantized"):
            training.pop(name, None)
    if training.get("adapter"):
        for name in ("trainable", "pruning"):
            training.pop(name, None)
    if spread.get("strategy") == "hsdp":
        spread["replicas"] = 2
        if drawing.degrees["data"] == 2:
            spread["strategy"] = "fsdp2"
            spread.pop("replicas")
    if spread.get("strategy") not in ("fsdp2", "hsdp"):
        spread.pop("gradient_sync", None)
    return job
