"""What a model needs: the headline, one job in full, how far it can go."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from estimator.contract.answer import Answer
from estimator.pipeline import estimation
from estimator.planner import headline, limits
from estimator.planner.answers import Limit
from estimator.planner.by_engine import SERVERS
from estimator.planner.headline_answer import HourlyPrice
from estimator.planner.ways import slugs

from .server import AJob, Detail, On, placed, tool, versions


class Way(BaseModel):
    """One usual way of using the model."""

    way: str
    verdict: str
    fits: bool | None
    total_bytes: int | None
    spread: str = Field("", description="how it is laid out over several GPUs")
    longest_context: int | None = Field(None, description="tokens, of a served model")
    tokens_per_second: float | None = Field(None, description="on all GPUs: of answers as they are written, or trained on")
    hours: float | None = Field(None, description="of a training run of `tokens`")
    total: str | None = Field(None, description="what that costs, at `rent`")
    would_fit_with: str = Field("", description="the smallest change that makes it fit")
    problem: str = ""


class Headline(BaseModel):
    """Which ways of using a model fit."""

    model: str
    hardware: str
    capacity_bytes: int | None
    rent: HourlyPrice | None = Field(
        None, description="what an hour of the hardware costs at least; null where no price is known"
    )
    ways: list[Way]
    versions: str
    full: dict[str, Any] | None = None


class Served(BaseModel):
    """How fast a served model answers."""

    first_token_seconds: float = Field(description="of a request that is alone")
    output_token_seconds: float = Field(description="from one token of an answer to the next, with all users at once")
    output_tokens_per_second: float = Field(description="of all users together")
    cache_tokens: int | None = Field(description="tokens of all users for which there is room")


class Verdict(BaseModel):
    """One job, in short."""

    fits: bool | None
    verdict: str
    reason: str
    total_bytes: int = Field(description="needed of one GPU")
    capacity_bytes: int | None = Field(description="what one GPU offers")
    peak_phase: str
    step_seconds: float | None
    served: Served | None = Field(description="null in training, and where no time is known")
    hours: float | None = Field(description="of the whole training run; null where the job does not say its tokens")
    cost: str | None = Field(description="of the whole run, with its currency")
    warnings: list[str]
    suggestions: list[str]
    versions: str
    full: dict[str, Any] | None = None


@tool
def fit(
    model: Annotated[str, Field(description="name, alias or size: llama-2-13b, 13B; or the text of a config.json")],
    on: On,
    context: Annotated[int | None, Field(description="tokens of a served sequence")] = None,
    concurrency: Annotated[int, Field(description="served sequences at the same time")] = 1,
    sequence: Annotated[int | None, Field(description="tokens of a sequence in training")] = None,
    batch: Annotated[int, Field(description="sequences in training on each GPU")] = 1,
    task: Annotated[str | None, Field(description=f"only the rows of one of {', '.join(slugs())}")] = None,
    tokens: Annotated[str | None, Field(description="what a training run processes, for its hours and cost: 100M")] = None,
    engine: Annotated[str | None, Field(description=f"only the rows of serving, by one of {', '.join(SERVERS)}")] = None,
    detail: Detail = "headline",
) -> Headline:
    """Which usual ways of training and serving a model fit on some hardware, and what would make the others fit."""
    lengths: dict[str, Any] = {"context": context, "concurrency": concurrency, "sequence": sequence, "batch": batch}
    found = headline.fit(model, on, False, **lengths, task=task, tokens=tokens, engine=engine)
    ways = [Way(**row.model_dump(include=set(Way.model_fields))) for row in found.rows]
    full = found.model_dump(mode="json") if detail == "full" else None
    about = {name: getattr(found, name) for name in ("model", "hardware", "capacity_bytes", "rent")}
    return Headline(**about, ways=ways, versions=versions(), full=full)


@tool
def estimate(job: AJob, on: On | None = None, detail: Detail = "headline") -> Verdict:
    """One job in full: does it fit, how many bytes, in which phase, how long a step takes, what the run costs."""
    found = estimation.estimate(placed(job, on), allow_files=False)
    cost = found.cost
    return Verdict(
        fits=found.fits,
        verdict=found.verdict,
        reason=found.reason,
        total_bytes=found.memory.total_bytes,
        capacity_bytes=found.memory.capacity_bytes,
        peak_phase=found.memory.peak_phase,
        step_seconds=found.time.step_seconds if found.time else None,
        served=_served(found),
        hours=found.run.hours if found.run else None,
        cost=f"{cost.total} {cost.currency}" if cost and cost.total else None,
        warnings=found.warnings,
        suggestions=found.suggestions,
        versions=versions(),
        full=found.model_dump(mode="json") if detail == "full" else None,
    )


def _served(found: Answer) -> Served | None:
    speed, cache = found.serving, found.memory.kv_cache
    if speed is None:
        return None
    return Served(
        first_token_seconds=speed.time_to_first_token_seconds,
        output_token_seconds=speed.time_per_output_token_seconds,
        output_tokens_per_second=speed.output_tokens_per_second,
        cache_tokens=cache.available_tokens if cache else None,
    )


@tool
def limit(
    job: AJob,
    field: Annotated[str, Field(description="dotted name of a whole number: training.sequence_length, serving.concurrency")],
    bound: Literal["max", "min"] = "max",
    on: On | None = None,
) -> Limit:
    """How far a job can go: the largest or smallest value of one of its numbers with which it still fits. Of a job that is served
    on several GPUs say parallelism.tensor: without it each has a copy of the model."""
    return limits.limit(job, field, bound, on=on, allow_files=False)
