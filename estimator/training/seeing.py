"""What of a job goes with a model that sees images or hears, and what is not modelled of one."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job
from estimator.contract.job.adapter import ALL_LINEAR
from estimator.families.spec import ModelSpec
from estimator.parallel.strategies import strategy_of
from estimator.training import hearing

WHERE = "training.images"
STRATEGIES = ("none", "fsdp2")
WIDE = ("32-true", "16-true", "megatron-fp16")
"""Precisions in which nothing casts what a model gets to the type of its weights, which is not bfloat16."""


def refuse(job: Job, spec: ModelSpec) -> None:
    """Raise `InvalidJob` for images or sound that do not fit the model or the sequence, `NotModelled` for what is not known
    together."""
    training, images = job.training, job.training.images
    hears = hearing.refuse(job, spec)
    if not spec.sees and images is not None:
        raise Contradiction(f"{spec.model_type} reads no images beside texts: leave it out, or name a model that does", WHERE)
    if not (spec.sees or hears):
        return
    if images is not None:
        bounds = {"min_pixels": images.min_pixels, "max_pixels": images.max_pixels}
        for name, bound in bounds.items():
            if bound is not None and not getattr(spec, "resizes", False):
                why = "its processor is told no number of pixels"
                raise Contradiction(f"{spec.model_type} takes no {name}, since {why}: leave it out", f"{WHERE}.{name}")
        each = spec.image_tokens(images)
        if each is None:
            raise NotModelled(f"images of {spec.model_type} are not modelled yet, texts alone are: leave it out", WHERE)
        if getattr(spec, "narrow_pixels", False) and training.precision in WIDE:
            raise Contradiction(
                f"the processor of {spec.model_type} makes pixels in bfloat16, which layers in another type do not take: write "
                "bf16-true or bf16-mixed",
                "training.precision",
            )
        if each * images.count * training.micro_batch_size == 1 and not getattr(spec, "takes_one_token", True):
            raise Contradiction(
                f"transformers' {spec.model_type} fails where all images of a batch are one token: write larger images, or more",
                WHERE,
            )
        tokens, between = images.count * each, int(getattr(spec, "tells_images_apart", False))
        room = training.sequence_length - hearing.tokens(job, spec)
        if tokens + between * (images.count - 1) > room:
            most = (room + between) // (each + between)
            fewer = f"at most {most}" if most else "none"
            apart = ", with a token between two of them" if between and images.count > 1 else ""
            left = f"{room} beside its sound" if training.audio else room
            raise Contradiction(
                f"{images.count} of {images.width} x {images.height} pixels are {tokens} tokens ({each} each){apart}, and a "
                f"sequence has {left}: write a longer training.sequence_length, or {fewer}",
                WHERE,
            )
    if spec.lora_by_name and getattr(training.adapter, "targets", None) == ALL_LINEAR:
        raise Contradiction(
            f"PEFT calls linear layers of {spec.model_type} by numbers that are its layers', too, and refuses those: list names, "
            f"such as [{', '.join(spec.lora_by_name)}]",
            "training.adapter.targets",
        )
    strategy = strategy_of(job)
    if strategy.name not in STRATEGIES:
        raise NotModelled(
            f"{spec.model_type} under {strategy} is not modelled yet; one GPU and fsdp2 are", "parallelism.strategy"
        )
    for asked, where, instead in (
        (job.parallelism.tensor > 1, "parallelism.tensor", "1"),
        (training.objective is not None, "training.objective", "none"),
        (training.evaluation is not None, "training.evaluation", "none"),
        (training.pruning is not None, "training.pruning", "none"),
        (training.float8 is not None, "training.float8", "none"),
        (job.offload.activations != "none", "offload.activations", "none"),
        (getattr(training.activation_checkpointing, "budget", None) is not None, CHECKPOINTING, "full or none"),
        (training.activation_checkpointing == "sqrt", CHECKPOINTING, "full or none"),
        (training.attention.startswith("flash"), "training.attention", "sdpa or eager"),
    ):
        if asked:
            does = "sees images" if spec.sees else "hears"
            raise NotModelled(f"this is not modelled for {spec.model_type}, which {does}, yet: write {instead}", where)


CHECKPOINTING = "training.activation_checkpointing"
