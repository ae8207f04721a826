"""What is tried on hardware that is looked for: a usual way of using a model, or a job of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from estimator.contract.errors import NotModelled
from estimator.contract.job import Hardware, Job, read_job
from estimator.contract.units import gib
from estimator.hardware.capacity import Capacity, capacity
from estimator.hardware.parse import read_hardware
from estimator.pipeline.judged import Judged, judged
from estimator.planner.budget import spread
from estimator.planner.headline import CONTEXT, SEQUENCE, counted, for_model, refuse_unlike
from estimator.planner.numbers import with_values
from estimator.planner.spreads import Question, spreads, tried, unshared
from estimator.planner.ways import Platform, Way, platform, slug, ways
from estimator.serving.engines import served_by
from estimator.specs.resolve import resolve


class Refused(NamedTuple):
    """Why there is no answer on some hardware."""

    verdict: Literal["unknown", "does not run"]
    why: str


class TooMuch(NamedTuple):
    """That it does not fit, though it was not simulated: a bound from below."""

    reason: str


class Done(NamedTuple):
    """What it takes on some hardware, and how it is spread over it."""

    spread: str
    judged: Judged


Outcome = Done | TooMuch | Refused


@dataclass(frozen=True)
class Usual:
    """A usual way of using a model, by its short name; on each platform it is what ways.yaml has there."""

    question: Question
    slug: str
    serving: dict[str, int]
    training: dict[str, Any]

    @property
    def title(self) -> str:
        """What is asked, in words."""
        return self.slug

    def way(self, card: Capacity) -> Way | Refused:
        """The way that it is on a card."""
        kind = platform(card)
        every = ways(kind, self.serving, self.training)
        published = for_model(self.question.found, kind, every)
        found = [way for way in (*published, *every) if way.answers(self.slug)]
        if not found:
            return Refused("unknown", f"not among the usual ways of using a model on {kind.name}")
        refused = found[0].refusal(kind)
        return found[0] if refused is None else Refused(refused.verdict, refused.why)

    def on(self, hardware: Hardware, card: Capacity, idle: bool = False) -> Outcome | None:
        """What it takes; None where GPUs would be idle, so that fewer do as well, unless they may. Raises `InvalidJob`."""
        way = self.way(card)
        if isinstance(way, Refused):
            return way
        gpus = hardware.gpus * hardware.nodes
        shared = not unshared(self.question, way, hardware)
        if not idle and way.part == "serving" and (hardware.nodes > 1 or (gpus > 1 and not shared)):
            return None
        if shared and (least := self.question.least_bytes(way, gpus)) > (card.memory_bytes or 0):
            what = "weights" if "adapter" in way.settings or way.part == "serving" else "weights and AdamW's states"
            each = "" if gpus == 1 else " on each GPU, however they share them"
            return TooMuch(f"its {what} alone are {gib(least)}{each}")
        try:
            found = tried(self.question, way, hardware)
        except NotModelled as error:
            return Refused("unknown", error.message)
        if found is None or (not idle and found.best.judged.job.hardware.gpus < hardware.gpus):
            return None
        return Done(found.best.spread, found.best.judged)


class Lengths(NamedTuple):
    """How long sequences are, how many at a time, served and in training, and what a run processes; None: as usual."""

    context: int | None = None
    concurrency: int = 1
    sequence: int | None = None
    batch: int = 1
    tokens: str | float | None = None


def usual(asked: Any, name: str, lengths: Lengths, allow_files: bool = True) -> Usual:
    """A usual way of using a model, by its short name. Raises `InvalidJob` for lengths that no job has, and as `resolve`."""
    found = resolve(asked, allow_files)
    most = found.spec.longest_sequence or CONTEXT
    serving = {"context": lengths.context or min(CONTEXT, most), "concurrency": lengths.concurrency}
    training = {"sequence_length": lengths.sequence or min(SEQUENCE, most), "micro_batch_size": lengths.batch}
    part = "serving" if name.startswith("serve") else "training"
    refuse_unlike({part}, lengths.context, lengths.sequence, lengths.tokens)
    if lengths.tokens is not None:
        training["tokens"] = counted(lengths.tokens)
    read_job({"model": "gpt2", "serving": serving, "training": training})  # whatever the model is, they are fields of a job
    return Usual(Question(found.name if found.published else asked, found, allow_files), name, serving, training)


def usual_job(
    model: str | dict[str, Any], on: str | Hardware, task: str, lengths: Lengths | None = None, allow_files: bool = True
) -> dict[str, Any]:
    """The job that a usual way of using a model is on some hardware, spread as the headline spreads it. Raises `InvalidJob`, and
    `NotModelled` where there is none."""
    hardware = read_hardware(on).hardware if isinstance(on, str) else on
    case = usual(model, slug(task), lengths or Lengths(), allow_files)
    way = case.way(capacity(hardware))
    if isinstance(way, Refused):
        raise NotModelled(way.why, "task")
    found = tried(case.question, way, hardware)
    if found is None:
        raise NotModelled("no way to spread it over these GPUs", "hardware")
    job = next(job for spread, job in spreads(case.question, way, hardware) if spread == found.best.spread)
    return {"model": case.question.model, **job}


@dataclass(frozen=True)
class Own:
    """A job of one's own on other hardware: the batch of one that trains is kept, the layers of one that serves are split."""

    job: Job
    allow_files: bool

    @property
    def title(self) -> str:
        """What is asked, in words."""
        return f"the job ({self.job.task})"

    def refusal(self, kind: Platform, card: Capacity) -> Refused | None:
        """Why it is not answered on a card: what ways.yaml says of the way that is most like it."""
        engine = served_by(self.job)
        if engine is not None and engine.reads_gguf:
            served = kind.name not in ("gaudi", "tpu", "neuron")
            return None if served else Refused("unknown", f"{engine.title} has no backend of its own for it that is modelled")
        like = [way for way in ways(kind, {}, {}) if way.answers(self._slug())]
        refused = like[0].refusal(kind) if like else None
        if refused is not None:
            return Refused(refused.verdict, refused.why)
        if not like or like[0].gguf:
            return Refused("unknown", kind.says or f"{engine.title if engine else 'training'} on {kind.name} is not modelled")
        if card.accelerator is not None and not card.accelerator.bf16 and self._half() == "bf16":
            return Refused("does not run", "the card has no bf16 arithmetic, in which the job is; ask for it in fp16")
        return None

    def on(self, hardware: Hardware, card: Capacity) -> Outcome | None:
        """What it takes; None where its degrees do not divide so many GPUs. Raises `InvalidJob` where it is refused there."""
        if (refused := self.refusal(platform(card), card)) is not None:
            return refused
        job = self._moved(hardware)
        if job is None:
            return None
        try:
            found = judged(job, self.allow_files)
        except NotModelled as error:
            return Refused("unknown", str(error))
        return Done(_spread(found.job), found)

    def _moved(self, hardware: Hardware) -> Mapping[str, Any] | Job | None:
        """The job on other hardware; what it says of renting stays."""
        if self.job.task == "train":
            return spread(self.job, str(hardware.gpu), hardware.gpus, hardware.nodes)
        network = self.job.hardware.network if hardware.gpu == self.job.hardware.gpu else None
        own = {"memory": None, "ram": None, "in_use": None, "owned": None, "network": network}
        kept = self.job.hardware.model_copy(update={"gpu": hardware.gpu, "nodes": hardware.nodes, **own})
        return with_values(self.job.model_copy(update={"hardware": kept}), {"hardware.gpus": hardware.gpus})

    def _slug(self) -> str:
        if self.job.task == "serve":
            weights = str(self.job.serving.weights)
            return "serve-8bit" if weights.startswith("fp8") else "serve-4bit" if weights.startswith("awq") else "serve"
        if self.job.training.adapter is not None:
            return "lora" if self.job.training.quantization is None else "qlora"
        return "full-mixed"

    def _half(self) -> str:
        asked = self.job.serving.weights if self.job.task == "serve" else self.job.training.precision
        return "bf16" if asked is None or "bf16" in str(asked) else ""


def _spread(job: Job) -> str:
    """The degrees of a job with its defaults, in words."""
    asked, gpus = job.parallelism, job.hardware.gpus * job.hardware.nodes
    degrees = [f"{name} {degree}" for name in ("tensor", "pipeline", "context") if (degree := getattr(asked, name)) > 1]
    if (asked.data or 1) > 1:
        degrees.append(f"{asked.strategy or 'data'} x{asked.data}" if job.task == "train" else f"{asked.data} replicas")
    return ", ".join(degrees) or ("1 GPU" if gpus == 1 else f"{gpus} GPUs")
