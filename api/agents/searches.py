"""What would do: cards, ways to rent and to train, copies that bear a load, other values."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, Field

from estimator.contract.job import read_job
from estimator.planner import budget as planner_budget
from estimator.planner import plan as planner_plan
from estimator.planner import replicas as planner_replicas
from estimator.planner import what_if as planner_what_if
from estimator.planner import which as planner_which
from estimator.planner.answers import BudgetRow
from estimator.planner.plan_answer import Plan
from estimator.planner.ways import slugs
from estimator.planner.which_answer import WhichRow

from .server import AJob, On, tool

MOST_WAYS, MOST_SIMULATED = 3, 200
"""Ways of a plan that are told, and that are simulated."""
MOST_COMBINATIONS = 64
"""Combinations of values that are tried."""


class Card(BaseModel):
    """A card, and how many of it do what was asked."""

    accelerator: str
    gpus: int = Field(description="of each node")
    nodes: int
    spread: str
    verdict: str
    total_bytes: int = Field(description="needed of one GPU")
    headroom_bytes: int
    tokens_per_second: float | None = Field(description="of answers, all sequences together, or trained on; on all GPUs")
    provider: str | None
    price_per_hour: str | None = Field(description="of all GPUs together, in `currency`")
    currency: str | None


class Cards(BaseModel):
    """Which hardware does it, the smallest first."""

    possible: bool | None
    reason: str
    found: int
    cheapest: Card | None
    rows: list[Card]


class Offers(BaseModel):
    """Ways to rent what a job needs, cheapest first."""

    possible: bool | None
    rows: list[BudgetRow]


class Copies(BaseModel):
    """A card, how many of it make one copy of a model, and how many copies bear the load."""

    accelerator: str
    gpus: int = Field(description="of one copy")
    replicas: int
    range_replicas: tuple[int, int] = Field(description="with kernels as fast, and as slow, as is expected")
    time_to_first_token_seconds: float
    time_per_output_token_seconds: float
    certain: bool = Field(description="whether the limits hold with slow kernels, too")
    provider: str | None
    price_per_hour: str | None = Field(description="of all of them together, in `currency`")
    currency: str | None


class Load(BaseModel):
    """How many copies bear a load, the cheapest first."""

    possible: bool | None
    reason: str
    found: int
    rows: list[Copies]


class OtherValues(BaseModel):
    """The job with other values of some of its fields."""

    values: dict[str, Any]
    fits: bool | None
    verdict: str
    total_bytes: int | None = Field(description="needed of one GPU")
    headroom_bytes: int | None
    tokens_per_second: float | None
    reason: str


class WhatIf(BaseModel):
    """A job with every combination of some values."""

    rows: list[OtherValues]


@tool
def which(
    model: Annotated[str, Field(description="name, alias or size: llama-2-13b, 13B; or the text of a config.json")],
    task: Annotated[str, Field(description=f"one of {', '.join(slugs())}")] = "serve",
    memory: Annotated[str | None, Field(description="only cards sold with 24GB, or 24GB..80GB")] = None,
    context: Annotated[int | None, Field(description="tokens of a served sequence")] = None,
    concurrency: Annotated[int, Field(description="served sequences at the same time")] = 1,
    top: Annotated[int, Field(ge=1, le=200)] = 5,
) -> Cards:
    """Which cards, and how few of them, a model can be served or trained on, with the cheapest that can be rented."""
    limits: dict[str, Any] = {"memory": memory, "context": context, "concurrency": concurrency}
    found = planner_which.which(model, task, **limits, top=top, allow_files=False)
    rows = [_card(row) for row in found.rows]
    cheapest = _card(found.cheapest) if found.cheapest else None
    return Cards(possible=found.possible, reason=found.reason, found=found.found, cheapest=cheapest, rows=rows)


def _card(row: WhichRow) -> Card:
    return Card(**row.model_dump(include=set(Card.model_fields)))


@tool
def budget(
    job: AJob,
    max_cost: Annotated[float | None, Field(gt=0, le=1e12, description="in the offers' currency")] = None,
    max_hours: Annotated[float | None, Field(gt=0, le=1e9, description="of the run, by the clock")] = None,
    top: Annotated[int, Field(ge=1, le=100)] = 5,
) -> Offers:
    """What to rent for a training job that says its tokens, cheapest first."""
    most = planner_budget.Limits(None if max_cost is None else Decimal(str(max_cost)), max_hours, planner_budget.MOST_GPUS)
    found = planner_budget.budget(read_job(job), most, rows=top, allow_files=False)
    return Offers(possible=found.possible, rows=found.rows)


@tool
def plan(
    job: AJob,
    on: On | None = None,
    within: Annotated[str | None, Field(description="what the run may take: 24h")] = None,
    under: Annotated[str | None, Field(description="what it may cost: $50 the run, $2/h an hour")] = None,
    max_gpus: Annotated[int, Field(ge=1, le=2**17)] = planner_budget.MOST_GPUS,
) -> Plan:
    """The best ways to train in money, time and memory left: strategy, degrees, recomputation, micro-batch, hardware."""
    asked: dict[str, Any] = {"on": on, "within": within, "under": under, "max_gpus": max_gpus}
    return planner_plan.plan(job, **asked, top=MOST_WAYS, most=MOST_SIMULATED, allow_files=False)


@tool
def replicas(
    model: Annotated[str, Field(description="name, alias or size of what is served: llama-3.1-8b, 70B")],
    requests: Annotated[float, Field(gt=0, le=1e6, description="that come in a second")],
    prompt: Annotated[int | None, Field(ge=1, le=2**24, description="tokens of each; 1024")] = None,
    output: Annotated[int | None, Field(ge=1, le=2**24, description="tokens of each answer; 256")] = None,
    ttft: Annotated[float | None, Field(gt=0, le=1e6, description="seconds to the first token at most, in the mean")] = None,
    tpot: Annotated[float | None, Field(gt=0, le=1e6, description="seconds for each token after it at most")] = None,
    on: Annotated[str | None, Field(description="no more GPUs than these, in place of every card: 8xH100")] = None,
    top: Annotated[int, Field(ge=1, le=100)] = 5,
) -> Load:
    """How many copies of a served model bear so many requests a second, on which cards, and where they cost least."""
    asked: dict[str, Any] = {"prompt": prompt, "output": output, "ttft": ttft, "tpot": tpot, "on": on}
    found = planner_replicas.replicas(model, requests, **asked, top=top, allow_files=False)
    rows = [Copies(**row.model_dump(include=set(Copies.model_fields))) for row in found.rows]
    return Load(possible=found.possible, reason=found.reason, found=found.found, rows=rows)


@tool
def what_if(
    job: AJob,
    changes: Annotated[
        list[str], Field(max_length=16, description="field=values, every combination is tried: training.sequence_length=1k..8k")
    ],
    on: On | None = None,
) -> WhatIf:
    """A job with other values of some of its fields: what it then needs, and whether it fits."""
    read = planner_what_if.read_changes(changes)
    found = planner_what_if.what_if(job, read, on=on, most=MOST_COMBINATIONS, allow_files=False)
    return WhatIf(rows=[OtherValues(**row.model_dump(include=set(OtherValues.model_fields))) for row in found.rows])
