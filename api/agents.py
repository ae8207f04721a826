"""The MCP server: the questions of the command line as tools for agents, answered in few words unless all is asked for.

`willitfit mcp` speaks over standard input and output, with --http over streamable HTTP. Tools only read: no file of this machine,
no network. Errors say what to write instead, as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

from estimator.contract.answer import Answer
from estimator.contract.errors import WillItFitError
from estimator.contract.job import Job, read_job
from estimator.contract.rows import GpuRow, ModelRow
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange import Surroundings, read
from estimator.exchange.found import Found
from estimator.hardware.accelerator import accelerator
from estimator.hardware.parse import read_hardware
from estimator.pipeline import estimation
from estimator.planner import budget as planner_budget
from estimator.planner import headline, limits
from estimator.planner import plan as planner_plan
from estimator.planner import which as planner_which
from estimator.planner.answers import BudgetRow, Limit
from estimator.planner.headline_answer import HourlyPrice
from estimator.planner.plan_answer import Plan
from estimator.planner.ways import slugs
from estimator.planner.which_answer import WhichRow
from estimator.views import listing
from estimator.views.inspection import inspect_model

INSTRUCTIONS = """\
Whether training or serving a transformer fits on GPUs, derived operation by operation, without a GPU. Ask `fit` first with a
model and hardware in words; ask `estimate` with a job, of which resource willitfit://schema/job lists every field. `fits` is
true, false, or null where the honest answer is "unknown". Sizes are in bytes of one GPU; GiB is 2^30. Answers are short:
detail="full" gives everything."""
MOST_ROWS = 20
"""Rows of a listing, unless more are asked for."""
MOST_WAYS, MOST_SIMULATED = 3, 200
"""Ways of a plan that are told, and that are simulated."""
READS = ToolAnnotations(readOnlyHint=True, idempotentHint=True, destructiveHint=False, openWorldHint=False)

P = ParamSpec("P")
R = TypeVar("R")
On = Annotated[str, Field(description="hardware: 2x24GB, rtx-4090, 8xH100, 2 nodes of 8xA100-80GB")]
AJob = Annotated[
    dict[str, Any], Field(description='a job, such as {"model": "llama-3-8b", "training": {"precision": "bf16-true"}}')
]
Detail = Annotated[
    Literal["headline", "full"], Field(description="headline: a few numbers; full: everything, thousands of words")
]


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
    cost: str | None = Field(description="of the whole run, with its currency")
    warnings: list[str]
    suggestions: list[str]
    versions: str
    full: dict[str, Any] | None = None


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


class Models(BaseModel):
    """Models that are known."""

    count: int
    rows: list[ModelRow]


class Gpus(BaseModel):
    """Accelerators that are known."""

    count: int
    rows: list[GpuRow]


server = MCPServer("willitfit", title="Will it fit?", version=SOFTWARE_VERSION, instructions=INSTRUCTIONS, log_level="WARNING")


def _tool(function: Callable[P, R]) -> Callable[P, R]:
    """A tool that reads, and whose errors are ours, with their slug."""

    @wraps(function)
    def answered(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except WillItFitError as error:
            raise ToolError(f"{error} [{error.slug}]") from None

    return server.tool(annotations=READS, structured_output=True)(answered)


def _versions() -> str:
    return f"willitfit {SOFTWARE_VERSION}, data {DATA_VERSION}"


def _job(job: dict[str, Any], on: str | None) -> dict[str, Any]:
    return {**job, "hardware": read_hardware(on).hardware.model_dump(exclude_defaults=True)} if on else job


@_tool
def fit(
    model: Annotated[str, Field(description="name, alias or size: llama-2-13b, 13B; or the text of a config.json")],
    on: On,
    context: Annotated[int | None, Field(description="tokens of a served sequence")] = None,
    concurrency: Annotated[int, Field(description="served sequences at the same time")] = 1,
    sequence: Annotated[int | None, Field(description="tokens of a sequence in training")] = None,
    batch: Annotated[int, Field(description="sequences in training on each GPU")] = 1,
    task: Annotated[str | None, Field(description=f"only the rows of one of {', '.join(slugs())}")] = None,
    tokens: Annotated[str | None, Field(description="what a training run processes, for its hours and cost: 100M")] = None,
    detail: Detail = "headline",
) -> Headline:
    """Which usual ways of training and serving a model fit on some hardware, and what would make the others fit."""
    lengths: dict[str, Any] = {"context": context, "concurrency": concurrency, "sequence": sequence, "batch": batch}
    found = headline.fit(model, on, False, **lengths, task=task, tokens=tokens)
    ways = [Way(**row.model_dump(include=set(Way.model_fields))) for row in found.rows]
    full = found.model_dump(mode="json") if detail == "full" else None
    about = {name: getattr(found, name) for name in ("model", "hardware", "capacity_bytes", "rent")}
    return Headline(**about, ways=ways, versions=_versions(), full=full)


@_tool
def estimate(job: AJob, on: On | None = None, detail: Detail = "headline") -> Verdict:
    """One job in full: does it fit, how many bytes, in which phase, how long a step takes, what the run costs."""
    found = estimation.estimate(_job(job, on), allow_files=False)
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
        cost=f"{cost.total} {cost.currency}" if cost else None,
        warnings=found.warnings,
        suggestions=found.suggestions,
        versions=_versions(),
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


@_tool
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


@_tool
def limit(
    job: AJob,
    field: Annotated[str, Field(description="dotted name of a whole number: training.sequence_length, serving.concurrency")],
    bound: Literal["max", "min"] = "max",
    on: On | None = None,
) -> Limit:
    """How far a job can go: the largest or smallest value of one of its numbers with which it still fits. Of a job that is served
    on several GPUs say parallelism.tensor: without it each has a copy of the model."""
    return limits.limit(job, field, bound, on=on, allow_files=False)


@_tool
def budget(
    job: AJob,
    max_cost: Annotated[float | None, Field(gt=0, le=1e12, description="in the offers' currency")] = None,
    max_hours: Annotated[float | None, Field(gt=0, le=1e9, description="of the run, by the clock")] = None,
    top: Annotated[int, Field(ge=1, le=100)] = 5,
) -> Offers:
    """What to rent for a training job that says its tokens, cheapest first."""
    from decimal import Decimal

    most = planner_budget.Limits(None if max_cost is None else Decimal(str(max_cost)), max_hours, planner_budget.MOST_GPUS)
    found = planner_budget.budget(read_job(job), most, rows=top, allow_files=False)
    return Offers(possible=found.possible, rows=found.rows)


@_tool
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


@_tool
def read_config(
    text: Annotated[
        str, Field(max_length=2**18, description="a file of axolotl, TRL, DeepSpeed …, or a command line of an engine")
    ],
    model: Annotated[str | None, Field(description="where the file names none")] = None,
    on: On | None = None,
    release: Annotated[str | None, Field(max_length=40, description="the framework's release, by its number or a day")] = None,
) -> Found:
    """What a framework's configuration or command says, as a job that `estimate` answers, with what was left out and assumed."""
    hardware = read_hardware(on).hardware if on else None
    return read(text, None, model=model, around=Surroundings(hardware=hardware, release=release))


@_tool
def find_models(search: str = "", top: Annotated[int, Field(ge=1, le=1000)] = MOST_ROWS) -> Models:
    """Known models whose names have the words of `search` in them, smallest first."""
    rows = listing.models(search)
    return Models(count=len(rows), rows=[ModelRow.model_validate(row) for row in rows[:top]])


@_tool
def find_gpus(search: str = "", top: Annotated[int, Field(ge=1, le=1000)] = MOST_ROWS) -> Gpus:
    """Known accelerators that have the words of `search` in a name, or as vendor, architecture, form or memory (24GB)."""
    rows = listing.gpus(search)
    return Gpus(count=len(rows), rows=[GpuRow.model_validate(row) for row in rows[:top]])


@server.resource("willitfit://schema/job", mime_type="application/schema+json")
def job_schema() -> str:
    """Every field of a job, as JSON Schema."""
    return json.dumps(Job.model_json_schema())


@server.resource("willitfit://models/{name}", mime_type="application/json")
def model(name: str) -> str:
    """What a model is made of."""
    return inspect_model(name, allow_files=False).model_dump_json()


@server.resource("willitfit://gpus/{name}", mime_type="application/json")
def gpu(name: str) -> str:
    """Every fact about an accelerator, with its sources."""
    return accelerator(name).model_dump_json()


@server.prompt()
def make_it_fit(model: str, on: str) -> str:
    """Find the smallest change with which a model can be trained or served on some hardware."""
    return (
        f"Ask the tool `fit` whether {model} fits on {on}. If a way that I may want does not, say which smallest change would "
        "make it fit and what that costs, check the change with `estimate`, and answer with the job, its bytes and its capacity."
    )


def run(http: bool, host: str, port: int) -> None:
    """Speak over standard input and output, or over streamable HTTP at /mcp."""
    if http:
        server.run("streamable-http", host=host, port=port)
    else:
        server.run("stdio")
