"""What an objective cannot be combined with, or not yet."""

from __future__ import annotations

from estimator.errors import InvalidJob, NotModelled
from estimator.families import heads
from estimator.job import Job, Lora
from estimator.specs.huggingface import from_mapping
from estimator.specs.spec import ModelSpec

WHERE = "training.objective"


def refuse(job: Job, spec: ModelSpec) -> None:
    """Raise `InvalidJob` or `NotModelled` for a settled training job whose objective does not fit the rest of it."""
    training, asked = job.training, job.training.objective
    if asked is None:
        if training.labels == 1:
            raise NotModelled("one label is a regression, whose loss is not modelled yet; two or more are", "training.labels")
        return
    name, strategy = asked.type, job.parallelism.strategy
    _check_beside(job, name)
    if strategy not in ("none", "ddp"):
        raise NotModelled(f"{name} under {strategy} is not modelled yet; one GPU and ddp are", WHERE)
    head = "sequence-classification" if name == "reward" else "causal-lm"
    if training.head != head:
        raise InvalidJob(f"{name} trains a {head}, not a {training.head}", "training.head")
    if name == "reward" and training.labels != 1:
        raise InvalidJob(f"a reward model has 1 label, not {training.labels}", "training.labels")
    if name == "reward" and (asked.reference or asked.prompt_length):
        raise InvalidJob("a reward model is trained on whole answers, without a reference: leave both out", WHERE)
    if training.implementation != "transformers" or training.loss != "eager" or training.transformers_release != "5":
        raise NotModelled(
            f"{name} is modelled with TRL's own loss over transformers 5: write implementation transformers and loss eager", WHERE
        )
    if name != "reward" and training.activation_checkpointing not in ("none", "full"):
        raise NotModelled(
            f"{name} switches checkpointing off and on again, in full: write none or full", "training.activation_checkpointing"
        )
    if any("expert" in field for field in type(spec).model_fields):
        raise NotModelled(f"{name} of mixtures of experts, with their auxiliary loss, is not modelled yet", WHERE)
    if name == "orpo" and asked.reference:
        raise InvalidJob("orpo compares answers by the model itself: leave it out", f"{WHERE}.reference")
    if name == "kto" and training.micro_batch_size < 2:
        raise InvalidJob("kto mixes the answers of a batch: write 2 or more", "training.micro_batch_size")
    if asked.prompt_length >= training.sequence_length:
        raise InvalidJob(
            f"a prompt of {asked.prompt_length} tokens leaves none of {training.sequence_length} for the answer",
            f"{WHERE}.prompt_length",
        )
    if (name == "distillation") != (asked.teacher is not None):
        raise InvalidJob("distillation, and no other objective, learns from a teacher: name a model", f"{WHERE}.teacher")
    if name == "distillation" and asked.reference:
        raise InvalidJob("a student is compared with its teacher: leave the reference out", f"{WHERE}.reference")
    if isinstance(asked.teacher, dict):
        _check_teacher(from_mapping(asked.teacher, f"{WHERE}.teacher"), spec, training.attention)
    if name not in ("grpo", "distillation") and asked.generation:
        raise InvalidJob(f"{name} is trained on answers that are there already: leave it out", f"{WHERE}.generation")
    if name in ("grpo", "distillation") and not asked.prompt_length:
        raise InvalidJob("answers need a prompt: write how many tokens of sequence_length it has", f"{WHERE}.prompt_length")
    if name == "grpo" and asked.reference == "precomputed":
        raise InvalidJob("answers that are not there yet cannot be scored before: write model, or adapter", f"{WHERE}.reference")
    if name == "grpo" and asked.reference == "model" and training.adapter:
        raise InvalidJob("beside an adapter TRL's reference is the model without it: write adapter", f"{WHERE}.reference")
    if asked.reference == "adapter" and not training.adapter:
        raise InvalidJob(
            "without an adapter the model is no reference of its own: write model, or precomputed", f"{WHERE}.reference"
        )


def _check_teacher(teacher: ModelSpec, student: ModelSpec, attention: str) -> None:
    where = f"{WHERE}.teacher"
    if not teacher.runs or "causal-lm" not in heads(teacher.model_type):
        raise NotModelled(f"{teacher.model_type} as a teacher is not modelled yet", where)
    if any("expert" in field for field in type(teacher).model_fields):
        raise NotModelled("a mixture of experts as a teacher is not modelled yet", where)
    words = [getattr(spec, "vocab_size", None) for spec in (teacher, student)]
    if words[0] != words[1]:
        raise InvalidJob(f"its vocabulary of {words[0]} is not the student's of {words[1]}, as TRL asks", where)
    if attention not in teacher.attentions:
        raise InvalidJob(f"transformers does not run {teacher.model_type} in {attention}", where)


def _check_beside(job: Job, name: str) -> None:
    """Other techniques, of which no objective is known beside."""
    training = job.training
    asked = training.adapter
    lora = asked is None or (isinstance(asked, Lora) and asked.bias == "none" and not asked.modules_to_save)
    for unknown, what, where in (
        (not lora, "this adapter: write type lora without bias and modules_to_save", "training.adapter"),
        (training.trainable != "all", "a part of the model trained", "training.trainable"),
        (training.attention_mask != "none", f"attention_mask {training.attention_mask}", "training.attention_mask"),
        (
            training.precision == "16-mixed" or training.precision.startswith("megatron"),
            f"{training.precision}: write bf16-mixed",
            "training.precision",
        ),
        (training.optimizer_in_backward, "a step within backward", "training.optimizer_in_backward"),
        (any(place != "none" for _, place in job.offload), "offloading", "offload"),
    ):
        if unknown:
            raise NotModelled(f"{name} is not modelled yet with {what}", where)
