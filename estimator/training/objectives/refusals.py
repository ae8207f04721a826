"""What an objective cannot be combined with, or not yet."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Lora
from estimator.contract.job.objective import Objective
from estimator.contract.job.training import Training
from estimator.families import having, heads
from estimator.families.from_config import from_mapping
from estimator.families.spec import ModelSpec
from estimator.parallel.strategies import strategy_of

WHERE = "training.objective"


def refuse(job: Job, spec: ModelSpec) -> None:
    """Raise `InvalidJob` or `NotModelled` for a training job with its defaults whose objective does not fit the rest of it."""
    training, asked = job.training, job.training.objective
    if asked is None:
        if training.labels == 1:
            raise NotModelled("one label is a regression, whose loss is not modelled yet; two or more are", "training.labels")
        return
    name, strategy = asked.type, strategy_of(job)
    _check_beside(job, name)
    if name == "ppo":
        _check_ppo(job, spec)
    elif asked.reward is not None:
        raise Contradiction("ppo, and no other objective, learns from a reward model: leave it out", f"{WHERE}.reward")
    if "objectives" not in strategy.models:
        raise NotModelled(f"{name} under {strategy} is not modelled yet; one GPU and ddp are", WHERE)
    head = "sequence-classification" if name == "reward" else "causal-lm"
    if training.head != head:
        raise Contradiction(f"{name} trains a {head}, not a {training.head}", "training.head")
    if name == "reward" and training.labels != 1:
        raise Contradiction(f"a reward model has 1 label, not {training.labels}", "training.labels")
    if name == "reward" and (asked.reference or asked.prompt_length):
        raise Contradiction("a reward model is trained on whole answers, without a reference: leave both out", WHERE)
    _check_settings(training, name, spec)
    _check_lengths(training, asked)
    _check_other_models(training, asked, spec)


def _check_settings(training: Training, name: str, spec: ModelSpec) -> None:
    """Raise for what TRL's trainers do not do with it, or do in another way than is modelled."""
    if training.implementation != "transformers" or training.loss != "eager" or training.transformers_release != "5":
        raise NotModelled(
            f"{name} is modelled with TRL's own loss over transformers 5: write implementation transformers and loss eager", WHERE
        )
    if name != "reward" and training.activation_checkpointing not in ("none", "full"):
        raise NotModelled(
            f"{name} switches checkpointing off and on again, in full: write none or full", "training.activation_checkpointing"
        )
    if spec.has_experts:
        raise NotModelled(f"{name} of mixtures of experts, with their auxiliary loss, is not modelled yet", WHERE)


def _check_lengths(training: Training, asked: Objective) -> None:
    """Raise for answers that cannot be compared."""
    name = asked.type
    if name == "orpo" and asked.reference:
        raise Contradiction("orpo compares answers by the model itself: leave it out", f"{WHERE}.reference")
    if name == "kto" and training.micro_batch_size < 2:
        raise Contradiction("kto mixes the answers of a batch: write 2 or more", "training.micro_batch_size")
    if asked.prompt_length >= training.sequence_length:
        raise Contradiction(
            f"a prompt of {asked.prompt_length} tokens leaves none of {training.sequence_length} for the answer",
            f"{WHERE}.prompt_length",
        )


def _check_other_models(training: Training, asked: Objective, spec: ModelSpec) -> None:
    """Raise for a reference or a teacher that the objective does not have, and for answers that it cannot write."""
    name = asked.type
    if (name == "distillation") != (asked.teacher is not None):
        raise Contradiction("distillation, and no other objective, learns from a teacher: name a model", f"{WHERE}.teacher")
    if name == "distillation" and asked.reference:
        raise Contradiction("a student is compared with its teacher: leave the reference out", f"{WHERE}.reference")
    if isinstance(asked.teacher, dict):
        _check_other(from_mapping(asked.teacher, f"{WHERE}.teacher"), spec, training.attention, "teacher", "student")
    if name not in ("grpo", "distillation") and asked.generation:
        raise Contradiction(f"{name} is trained on answers that are there already: leave it out", f"{WHERE}.generation")
    if name in ("grpo", "distillation", "ppo") and not asked.prompt_length:
        raise Contradiction("answers need a prompt: write how many tokens of sequence_length it has", f"{WHERE}.prompt_length")
    if name in ("grpo", "ppo") and asked.reference == "precomputed":
        raise Contradiction(
            "answers that are not there yet cannot be scored before: write model, or adapter", f"{WHERE}.reference"
        )
    if name == "grpo" and asked.reference == "model" and training.adapter:
        raise Contradiction("beside an adapter TRL's reference is the model without it: write adapter", f"{WHERE}.reference")
    if asked.reference == "adapter" and not training.adapter:
        raise Contradiction(
            "without an adapter the model is no reference of its own: write model, or precomputed", f"{WHERE}.reference"
        )


def _check_ppo(job: Job, spec: ModelSpec) -> None:
    """Raise for what TRL's loop does not do, and for what is not modelled of it."""
    training, asked = job.training, job.training.objective
    assert asked is not None
    rows = training.micro_batch_size * training.gradient_accumulation_steps
    if not strategy_of(job).alone:
        raise NotModelled("ppo on several GPUs is not modelled yet; one is", WHERE)
    if not spec.can.ppo:
        known = ", ".join(having(lambda kind: kind.can.ppo))
        raise NotModelled(f"ppo of {spec.model_type} models is not modelled yet; {known} are", WHERE)
    if isinstance(asked.reward, dict):
        reward = from_mapping(asked.reward, f"{WHERE}.reward")
        _check_other(reward, spec, training.attention, "reward", "trained model")
        if not reward.can.ppo:
            raise NotModelled(f"{reward.model_type} as a reward model is not modelled yet", f"{WHERE}.reward")
    if job.host.memory is not None:
        raise NotModelled("the host's memory under ppo is not modelled yet; leave it out", "host.memory")
    if asked.generation:
        raise Contradiction("in TRL's ppo the model itself writes the answers: leave it out", f"{WHERE}.generation")
    if training.quantization:
        raise NotModelled("ppo with quantized weights is not modelled yet", "training.quantization")
    if training.activation_checkpointing != "none":
        raise Contradiction("TRL's ppo never switches checkpointing on: write none", "training.activation_checkpointing")
    if training.gradient_clipping or not training.zero_grad_to_none:
        raise Contradiction("TRL's ppo clips no gradients, and sets them to None: leave both out", "training.gradient_clipping")
    if rows > asked.rollout_batch_size and rows % asked.rollout_batch_size:
        raise NotModelled(
            f"{rows} sequences in parts of {asked.rollout_batch_size} are not modelled yet: write a number that divides them",
            f"{WHERE}.rollout_batch_size",
        )


def _check_other(other: ModelSpec, student: ModelSpec, attention: str, what: str, who: str) -> None:
    """Raise for another model, which is not of the job's words."""
    where = f"{WHERE}.{what}"
    if not other.runs or "causal-lm" not in heads(other.model_type):
        raise NotModelled(f"{other.model_type} as a {what} is not modelled yet", where)
    if other.has_experts:
        raise NotModelled(f"a mixture of experts as a {what} is not modelled yet", where)
    words = [getattr(spec, "vocab_size", None) for spec in (other, student)]
    if words[0] != words[1]:
        raise Contradiction(f"its vocabulary of {words[0]} is not the {who}'s of {words[1]}, as TRL asks", where)
    if attention not in other.attentions:
        raise Contradiction(f"transformers does not run {other.model_type} in {attention}", where)


def _check_beside(job: Job, name: str) -> None:
    """Other techniques that are not known to go with any objective."""
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
