"""Defaults that depend on the model, the hardware or the rest of a job: ordered rules, each with the reason that an answer cites.

A default that depends on nothing stands in the contract (`contract.job`). A rule sees what the rules before it have filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, get_args

from pydantic import BaseModel

from estimator.contract.job import Job
from estimator.contract.job.adapter import PrefixTuning, PromptLearning
from estimator.contract.job.audio import Audio
from estimator.contract.job.optimizer import IMPLEMENTATIONS, RANKS
from estimator.contract.job.training import Head
from estimator.contract.notes import Said
from estimator.families import heads
from estimator.families.other import OtherSpec
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import capacity, ram_bytes
from estimator.parallel.strategies import ZERO3, strategy_of
from estimator.serving.engine import Default, Engine
from estimator.serving.engines import ENGINES, served_by, unread_settings
from estimator.serving.llamacpp.engine import LLAMA_CPP
from estimator.specs.stored import Stored
from estimator.training.quantization import TRAINED

Reasons = dict[str, str]
"""Why a field has the value that a rule gave it, by its path in a job."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What fills in a field that was not given: a `value`, or None where the rule says nothing."""

    field: str
    value: Callable[[Job, ModelSpec], Any]
    reason: str

    def applied(self, job: Job, spec: ModelSpec) -> Job | None:
        """The job with this field filled in; None where the rule says nothing."""
        *path, name = self.field.split(".")
        part: BaseModel = reduce(getattr, path, job)
        given = part is None or (name in part.model_fields_set and getattr(part, name) is not None)
        if given:
            return None
        value = self.value(job, spec)
        if value is None:
            return None
        for outer in range(len(path), -1, -1):
            part = reduce(getattr, path[:outer], job).model_copy(update={name: value})
            name, value = path[outer - 1] if outer else "", part
        assert isinstance(part, Job)
        return part


def with_defaults(job: Job, spec: ModelSpec, stored: Stored | None = None, embeds: bool = False) -> tuple[Job, Reasons]:
    """The job with every default filled in that a rule has for it, and why, by field.

    `stored`: how the checkpoint is stored, of one that is quantized. `embeds`: whether the checkpoint is for vectors of texts.
    """
    reasons: Reasons = {}
    for rule in (*(_as_stored(stored) if stored else ()), *((_POOLED,) if embeds else ()), *RULES):
        filled = rule.applied(job, spec)
        if filled is not None:
            job = filled
            reasons[rule.field] = rule.reason
    return job, reasons


CLIP = Audio(seconds=15.625)
"""What a model that reads nothing but sound is trained on."""
OFF = (False, "none", 0, 1)
"""Values of a default that change nothing: an answer's list for readers may leave them out."""


def defaults_used(given: Job, filled: Job, reasons: Reasons) -> Iterator[Said]:
    """'training.optimizer = adamw' for every field that was not given, with the value that it got and, of a rule's, the reason.

    The slug is `default`, or `default-off` of a value that changes nothing and that no rule chose. Those of the other task are
    left out, and of a server those that its engine does not read.
    """
    other = ("serving.",) if filled.task == "train" else ("training.", "host.", "offload.")
    unread = unread_settings(filled) if filled.task == "serve" else frozenset()
    for field, value in _unlike(given, filled, ""):
        if not field.startswith(other) and field not in unread:
            reason = reasons.get(field)
            slug = "default-off" if reason is None and value is not True and value in OFF else "default"
            yield Said(slug, _said(field, value, reason), field)


def _said(field: str, value: Any, reason: str | None) -> str:
    shown = str(value).lower() if isinstance(value, bool) else value
    return f"{field} = {shown} ({reason})" if reason else f"{field} = {shown}"


def _unlike(given: BaseModel, filled: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in type(given).model_fields:
        before, value = getattr(given, name), getattr(filled, name)
        if isinstance(before, BaseModel):
            yield from _unlike(before, value, f"{prefix}{name}.")
        elif name not in given.model_fields_set and value is not None:
            yield prefix + name, value


def _trains_with(*implementations: str) -> Callable[[Job], bool]:
    return lambda job: job.task == "train" and job.training.implementation in implementations


_with_megatron = _trains_with("megatron")
_in_parts = _trains_with("megatron", "torchtitan")


def _accumulation(job: Job, spec: ModelSpec) -> int | None:
    spread = job.parallelism
    if not _with_megatron(job) or spread.pipeline == 1:
        return None
    return spread.pipeline * (2 if spread.pipeline_schedule in ("zbv", "dualpipev", "dualpipe") else 1)


def _schedule(job: Job, spec: ModelSpec) -> str | None:
    if not _with_megatron(job) or job.parallelism.pipeline == 1:
        return None
    return "1f1b" if (job.parallelism.model_chunks or 1) == 1 else "interleaved"


def _chunks(job: Job, spec: ModelSpec) -> int | None:
    if not _with_megatron(job) or job.parallelism.pipeline == 1:
        return None
    return 1 if job.parallelism.pipeline_schedule in ("1f1b", "gpipe", "zero-bubble") else 2


def _positions(job: Job, spec: ModelSpec) -> int | None:
    """Tokens that the model has positions for, without those of a trained prompt."""
    most, adapter = spec.longest_sequence, job.training.adapter
    if most and job.task == "train" and isinstance(adapter, PromptLearning):
        return max(1, most - adapter.virtual_tokens)
    return most


def _sequence(job: Job, spec: ModelSpec) -> int | None:
    most = _positions(job, spec)
    return most if most and job.training.sequence_length > most else None


def _context(job: Job, spec: ModelSpec) -> int | None:
    serving, most = job.serving, _positions(job, spec)
    if serving.prompt_length and serving.output_length:
        return serving.prompt_length + serving.output_length
    most = spec.most_targets or most
    return most if most and serving.context > most else None


def _objective(job: Job) -> str | None:
    return job.training.objective.type if job.training.objective else None


def _labels(job: Job, spec: ModelSpec) -> int | None:
    return 2 if (job.training.head or "").endswith("classification") else None


def _spoken(job: Job, spec: ModelSpec) -> int | None:
    """Letters of a clip, of a model that writes one or none in each frame."""
    audio = job.training.audio
    if not spec.listens or audio is None:
        return None
    return max(1, min(round(15 * audio.seconds), spec.audio_tokens(audio) or 1))


def _reference(job: Job, spec: ModelSpec) -> str | None:
    if _objective(job) not in ("dpo", "kto", "ppo"):
        return None
    return "adapter" if job.training.adapter else "model"


def _data(job: Job, spec: ModelSpec) -> int:
    spread = job.parallelism
    return max(1, job.hardware.gpus * job.hardware.nodes // (spread.tensor * spread.pipeline * spread.context))


def _several(job: Job) -> bool:
    """Whether a job trains over several data-parallel ranks."""
    return job.task == "train" and (job.parallelism.data or 1) * job.parallelism.context > 1


def _sequence_parallel(job: Job, spec: ModelSpec) -> bool | None:
    splits = job.training.implementation == "megatron" or job.parallelism.tensor > 1
    return job.parallelism.tensor > 1 if splits and job.task == "train" else None


def _only(where: Callable[[Job], Any], value: Callable[[Job], Any]) -> Callable[[Job, ModelSpec], Any]:
    """`value` of a job, for the jobs of which `where` says yes."""
    return lambda job, spec: value(job) if where(job) else None


def _serves(job: Job) -> bool:
    return job.task == "serve"


def _trains(job: Job) -> bool:
    return job.task == "train"


def _quantizes(job: Job) -> bool:
    return job.task == "train" and job.training.quantization is not None


def _usual_head(job: Job, spec: ModelSpec) -> str | None:
    """None for models of several parts, whose heads no job can name yet."""
    usual: str = spec.head if isinstance(spec, OtherSpec) else next(iter(heads(spec.model_type)))
    return usual if usual in get_args(Head) else None


def _gathers(job: Job) -> bool:
    """Whether no rank has all of the model that is trained."""
    return _trains(job) and strategy_of(job).gathers


def _with_transformers_5(job: Job) -> bool:
    return job.training.transformers_release == "5"


def _of_engine(engine: Engine, each: Default) -> Rule:
    def value(job: Job, spec: ModelSpec) -> Any:
        return each.value(job, spec, capacity(job.hardware)) if served_by(job) is engine else None

    return Rule(f"serving.{each.field}", value, each.reason)


_POOLED = Rule(
    "serving.runner",
    _only(lambda job: _serves(job) and "runner" in ENGINES[job.serving.engine].settings, lambda job: "pooling"),
    "its checkpoint is one of sentence-transformers",
)


def _as_stored(stored: Stored) -> Iterator[Rule]:
    """What a quantized checkpoint says of the types of weights, where what runs it loads them so."""
    why = "as its checkpoint stores them"

    def serves(job: Job) -> bool:
        return _serves(job) and ENGINES[job.serving.engine].loads(stored.format) is not None

    def served(job: Job) -> str | None:
        return ENGINES[job.serving.engine].loads(stored.format)

    def trains(job: Job) -> bool:
        asked = job.training
        plain = asked.implementation not in ("megatron", "torchtitan")
        return _trains(job) and stored.named and plain and asked.adapter is not None and stored.format in TRAINED

    if stored.gguf:
        yield Rule("serving.engine", _only(_serves, lambda job: LLAMA_CPP.name), "a GGUF file is llama.cpp's")
    yield Rule("serving.weights", _only(serves, served), why)
    yield Rule("training.quantization", _only(trains, lambda job: stored.format), why)
    for where, name, asked in (("serving", "weights", serves), ("training", "quantization", trains)):
        so = partial(_in_format, asked, where, name, stored.format)
        if stored.group:
            yield Rule(f"{where}.{name}_group", _only(so, lambda job: stored.group), why)
        if stored.whole:
            yield Rule(f"{where}.unquantized", _only(so, lambda job: list(stored.whole)), why)
        if stored.mixed and where == "serving":
            yield Rule("serving.mixed_weights", _only(so, lambda job: {name: list(parts) for name, parts in stored.mixed}), why)


def _in_format(asked: Callable[[Job], bool], where: str, name: str, stored: str, job: Job) -> bool:
    """Whether a job that is `asked` for has its weights in the format that the checkpoint has."""
    return asked(job) and getattr(getattr(job, where), name) == stored


RULES = (
    Rule(
        "parallelism.context_exchange",
        _only(lambda job: _with_megatron(job) and job.parallelism.context > 1, lambda job: "p2p"),
        "Megatron-Core's own: keys and values go round in a ring",
    ),
    Rule("parallelism.pipeline_schedule", _schedule, "Megatron-LM's: interleaved where a rank has several chunks, else 1F1B"),
    Rule("parallelism.model_chunks", _chunks, "as many as the pipeline's schedule needs"),
    Rule("training.precision", _only(_with_megatron, lambda job: "megatron-bf16"), "Megatron-LM's --bf16"),
    Rule("training.gradient_accumulation_steps", _accumulation, "as many micro-batches as fill the pipeline"),
    Rule(
        "training.optimizer_implementation",
        lambda job, spec: IMPLEMENTATIONS[job.training.optimizer][0],
        "the usual implementation of this optimizer",
    ),
    Rule("training.optimizer_rank", lambda job, spec: RANKS.get(job.training.optimizer), "the library's own for this optimizer"),
    Rule(
        "training.sequence_length",
        _only(lambda job: job.training.lengths, lambda job: job.training.longest),
        "the longest of training.lengths",
    ),
    Rule("training.sequence_length", _sequence, "the model has positions for no more"),
    Rule(
        "training.loss",
        _only(lambda job: job.training.implementation == "liger", lambda job: "fused"),
        "Liger's fused linear cross-entropy, which its patch applies",
    ),
    Rule(
        "training.attention",
        lambda job, spec: None if job.training.attention in spec.attentions else spec.attentions[0],
        "the first that transformers has for this model",
    ),
    Rule(
        "training.activation_checkpointing",
        _only(lambda job: isinstance(job.training.adapter, PrefixTuning), lambda job: "none"),
        "PEFT refuses checkpointing with prefix tuning",
    ),
    Rule(
        "training.activation_checkpointing",
        lambda job, spec: None if spec.recomputed else "none",
        "transformers has no gradient checkpointing for this model",
    ),
    Rule(
        "training.activation_checkpointing",
        _only(lambda job: _objective(job) == "ppo", lambda job: "none"),
        "TRL's PPO never switches it on",
    ),
    Rule(
        "training.audio",
        lambda job, spec: CLIP if spec.listens else None,
        "250,000 samples, to which wav2vec 2.0 was trained to cut what is longer",
    ),
    Rule(
        "training.target_length",
        lambda job, spec: _spoken(job, spec),
        "15 letters a second, as English is read aloud",
    ),
    Rule(
        "training.target_length",
        lambda job, spec: min(job.training.sequence_length, spec.most_targets) if spec.most_targets else None,
        "as long as the input, or as the decoder has positions for",
    ),
    Rule(
        "training.head",
        _only(lambda job: _objective(job) == "reward", lambda job: "sequence-classification"),
        "what a reward model is",
    ),
    Rule("training.labels", _only(lambda job: _objective(job) == "reward", lambda job: 1), "a reward is one number"),
    Rule("training.head", _usual_head, "the usual head of this kind of model"),
    Rule("training.labels", _labels, "a classification of two"),
    Rule("training.objective.reference", _reference, "TRL's: the model without its adapter, or a copy of the model"),
    Rule("serving.context", _context, "prompt and answer together, or as much as the model has positions for"),
    *(_of_engine(engine, each) for engine in ENGINES.values() for each in engine.defaults),
    Rule(
        "serving.prompt_length",
        _only(_serves, lambda job: job.serving.lengths[0]),
        "half of the context, or what the answer leaves",
    ),
    Rule("serving.output_length", _only(_serves, lambda job: job.serving.lengths[1]), "what the prompt leaves of the context"),
    Rule("parallelism.data", _data, "the GPUs that the other degrees leave"),
    Rule("parallelism.strategy", _only(lambda job: not _several(job), lambda job: "none"), "one GPU holds the model"),
    Rule("parallelism.strategy", _only(_with_megatron, lambda job: "zero1"), "Megatron-Core's distributed optimizer"),
    Rule("parallelism.strategy", lambda job, spec: "fsdp2", "torch's own way to share a model among several GPUs"),
    Rule(
        "parallelism.replicas",
        _only(lambda job: strategy_of(job).replicated and job.hardware.nodes > 1, lambda job: job.hardware.nodes),
        "one in each node",
    ),
    Rule("parallelism.sequence", _sequence_parallel, "beside tensor parallelism"),
    Rule("host.memory", _only(_trains, lambda job: ram_bytes(job.hardware)), "hardware.ram"),
    Rule(
        "host.loading",
        _only(lambda job: _quantizes(job) and _gathers(job) and not _with_transformers_5(job), lambda job: "first"),
        "transformers 4 quantizes on the GPU and keeps the weights in the first rank's host memory, for FSDP and ZeRO-3",
    ),
    Rule("host.loading", _only(_quantizes, lambda job: "device"), "quantized weights go to their GPU"),
    Rule("host.loading", _only(_in_parts, lambda job: "device"), "each part is made on its GPU"),
    Rule(
        "host.loading",
        _only(lambda job: _gathers(job) and strategy_of(job) is ZERO3, lambda job: "first"),
        "the first rank loads, as transformers does under ZeRO-3",
    ),
    Rule(
        "host.loading",
        _only(lambda job: _gathers(job) and not _with_transformers_5(job), lambda job: "first"),
        "the first rank of a node loads (cpu_ram_efficient_loading, which `accelerate launch` turns on for FSDP)",
    ),
    Rule(
        "host.loading",
        _only(_gathers, lambda job: "each"),
        "each rank loads the model: transformers 5 does so under FSDP, whatever cpu_ram_efficient_loading says",
    ),
    Rule("host.loading", _only(_trains, lambda job: "each"), "each rank loads the model"),
    Rule("host.save", _only(lambda job: _trains(job) and job.training.adapter, lambda job: "adapter"), "what was trained"),
    Rule("host.save", _only(_in_parts, lambda job: "sharded"), "each rank writes its part"),
    Rule("host.save", _only(_trains, lambda job: "model"), "the weights, without the optimizer"),
)
"""The rules, in the order in which they are applied."""
