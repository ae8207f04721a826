"""Training for more than a model's own loss: further models, answers in pairs, log-probabilities of answers.

Each objective is a model to the step: it has a batch's inputs, and a forward pass that ends in a loss.
"""

from __future__ import annotations

from estimator.contract.errors import NotModelled
from estimator.contract.job import Job
from estimator.contract.job.objective import Objective
from estimator.families import build_model
from estimator.families.build import Builder
from estimator.families.from_config import from_mapping
from estimator.families.heads import Batch, CausalLM, Model, SequenceClassification
from estimator.families.kv_cache import PassingCache
from estimator.families.parameter import Parameter
from estimator.families.spec import ModelSpec
from estimator.tape.dtypes import DType
from estimator.training.generation import Writer, caches
from estimator.training.objectives.distillation import Distillation
from estimator.training.objectives.group import Grpo
from estimator.training.objectives.kto import Kto
from estimator.training.objectives.orpo import Orpo
from estimator.training.objectives.ppo import Ppo, Shower
from estimator.training.objectives.preference import Dpo
from estimator.training.objectives.reference import Reference
from estimator.training.objectives.reward import Reward
from estimator.training.objectives.scores import Scorer


def objective(
    job: Job, spec: ModelSpec, build: Builder, model: Model, autocast: DType | None, writer: Writer | None = None
) -> Model:
    """What a step of the job runs in place of `model`, with what writes its answers if that is the model itself."""
    asked = job.training.objective
    if asked is None:
        return model
    if asked.type == "reward" and isinstance(model, SequenceClassification):
        return Reward(model, autocast)
    if not isinstance(model, CausalLM):
        raise NotModelled(f"{asked.type} of {spec.model_type} models is not modelled yet", "training.objective")
    if asked.type == "ppo":
        assert writer is not None
        return _ppo(job, spec, build, Shower(model, writer.caches), autocast, writer)
    if asked.type == "grpo":
        scorer = Scorer(model, autocast, ("entropy",))
        beside = _reference(asked, spec, build, scorer) if asked.reference else None
        steps = job.training.gradient_accumulation_steps
        engine = asked.generation is None or asked.generation.engine != "transformers"
        answers = Grpo(scorer, beside, asked.prompt_length, steps, engine)
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
        return Kto(policy, _reference(asked, spec, build, policy), asked.prompt_length)
    policy = Scorer(model, autocast, ("entropy", "mean_logits", "is_top1"))
    return Dpo(policy, _reference(asked, spec, build, policy), asked.prompt_length)


def _ppo(job: Job, spec: ModelSpec, build: Builder, policy: Shower, autocast: DType | None, writer: Writer) -> Ppo:
    """Four models, or three; of those other than the policy the one that values learns, too."""
    training, asked = job.training, job.training.objective
    assert asked is not None
    other = from_mapping(asked.reward, "training.objective.reward") if isinstance(asked.reward, dict) else spec
    value, parameters = _shower(other, build, "value", "sequence-classification")
    build.parameters += parameters
    reward, _ = _shower(other, build, "reward", "sequence-classification")
    reference = _shower(spec, build, "reference", "causal-lm")[0] if asked.reference == "model" else None
    batch = Batch(training.micro_batch_size, training.sequence_length, 0)
    steps = training.gradient_accumulation_steps
    chunk = min(asked.rollout_batch_size, training.micro_batch_size * steps)
    ppo = Ppo(policy, value, reference, reward, writer, autocast, batch, asked.prompt_length, chunk, steps)
    ppo.start()
    return ppo


def _shower(spec: ModelSpec, build: Builder, what: str, head: str) -> tuple[Shower, list[Parameter]]:
    """Another model with all that its output holds, and its parameters."""
    made: list[PassingCache] = []
    other = Builder(
        build.tape,
        build.dtype,
        attention=build.attention,
        labels=1,
        cache=caches(build.tape, spec, made),
        shows_states=True,
        unrolled=build.unrolled,
        beside=what,
    )
    model = build_model(spec, other, head)
    assert isinstance(model, CausalLM | SequenceClassification)
    return Shower(model, made), other.parameters


def _reference(asked: Objective, spec: ModelSpec, build: Builder, policy: Scorer) -> Reference:
    """What the policy is compared with; without its adapter it makes what is read off its logits all the same."""
    if asked.reference == "precomputed":
        return Reference(None)
    if asked.reference == "adapter":
        return Reference(policy, without_adapter=True)
    return Reference(Scorer(_beside(spec, build, "reference"), policy.autocast))


def _teacher(asked: Objective, build: Builder) -> CausalLM:
    assert isinstance(asked.teacher, dict)
    return _beside(from_mapping(asked.teacher, "training.objective.teacher"), build, "teacher")


def _beside(spec: ModelSpec, build: Builder, what: str) -> CausalLM:
    """Another model, in the type in which the trained one is loaded."""
    other = Builder(build.tape, build.dtype, attention=build.attention, unrolled=build.unrolled, beside=what)
    frozen = build_model(spec, other, "causal-lm")
    assert isinstance(frozen, CausalLM)
    return frozen
