"""Training for more than a model's own loss: other models beside it, answers in pairs, log-probabilities of answers.

Each objective is a model to the step: it has a batch's inputs, and a forward pass that ends in a loss.
"""

from __future__ import annotations

from estimator.dtypes import DType
from estimator.errors import NotModelled
from estimator.families import build_model
from estimator.families.build import Builder
from estimator.families.heads import Batch, CausalLM, Model, SequenceClassification
from estimator.job import Job
from estimator.job.objective import Objective
from estimator.specs.huggingface import from_mapping
from estimator.specs.spec import ModelSpec
from estimator.training.objectives.distillation import Distillation
from estimator.training.objectives.group import Grpo
from estimator.training.objectives.kto import Kto
from estimator.training.objectives.orpo import Orpo
from estimator.training.objectives.preference import Dpo
from estimator.training.objectives.reference import Reference
from estimator.training.objectives.reward import Reward
from estimator.training.objectives.scores import Scorer


def objective(job: Job, spec: ModelSpec, build: Builder, model: Model, autocast: DType | None) -> Model:
    """What a step of the job runs in place of `model`."""
    asked = job.training.objective
    if asked is None:
        return model
    if asked.type == "reward" and isinstance(model, SequenceClassification):
        return Reward(model, autocast)
    if not isinstance(model, CausalLM):
        raise NotModelled(f"{asked.type} of {spec.model_type} models is not modelled yet", "training.objective")
    if asked.type == "grpo":
        beside = _reference(asked, spec, build, model, autocast) if asked.reference else None
        steps = job.training.gradient_accumulation_steps
        engine = asked.generation is None or asked.generation.engine != "transformers"
        answers = Grpo(Scorer(model, autocast, ("entropy",)), beside, asked.prompt_length, steps, engine)
        answers.gather(build.tape, Batch(job.training.micro_batch_size, job.training.sequence_length, 0))
        return answers
    if asked.type == "distillation":
        pupil = Distillation(model, _teacher(asked, build), asked.prompt_length, job.training.gradient_accumulation_steps)
        pupil.gather(build.tape, Batch(job.training.micro_batch_size, job.training.sequence_length, 0))
        return pupil
    if asked.type == "orpo":
        return Orpo(model, autocast, asked.prompt_length)
    if asked.type == "kto":
        policy = Scorer(model, autocast, ("entropy", "mean_logits"))
        return Kto(policy, _reference(asked, spec, build, model, autocast), asked.prompt_length)
    policy = Scorer(model, autocast, ("entropy", "mean_logits", "is_top1"))
    return Dpo(policy, _reference(asked, spec, build, model, autocast), asked.prompt_length)


def _reference(asked: Objective, spec: ModelSpec, build: Builder, model: CausalLM, autocast: DType | None) -> Reference:
    if asked.reference == "precomputed":
        return Reference(None)
    if asked.reference == "adapter":
        return Reference(Scorer(model, autocast), without_adapter=True)
    return Reference(Scorer(_beside(spec, build, "reference"), autocast))


def _teacher(asked: Objective, build: Builder) -> CausalLM:
    assert isinstance(asked.teacher, dict)
    return _beside(from_mapping(asked.teacher, "training.objective.teacher"), build, "teacher")


def _beside(spec: ModelSpec, build: Builder, what: str) -> CausalLM:
    """Another model, in the type in which the trained one is loaded."""
    other = Builder(build.tape, build.dtype, attention=build.attention, unrolled=build.unrolled, beside=what)
    frozen = build_model(spec, other, "causal-lm")
    assert isinstance(frozen, CausalLM)
    return frozen
