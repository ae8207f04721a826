"""Which hardware does it: every card of the catalogue, how few of it, what that costs; the smallest and the cheapest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from estimator.contract.answer import Versions
from estimator.contract.errors import Contradiction, InvalidValue
from estimator.contract.job import Job, read_job
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange.documents import is_configuration, read_file
from estimator.pipeline.estimation import tokens_per_second
from estimator.planner import amounts
from estimator.planner.budget import MOST_GPUS
from estimator.planner.cases import Lengths, Own, Usual, usual
from estimator.planner.fleet import cards
from estimator.planner.renting import Within
from estimator.planner.ways import HOURS, SPEED, slug
from estimator.planner.which_answer import NotKnown, TooLittle, Which, WhichRow
from estimator.planner.which_search import Search, Watch
from estimator.specs.resolve import resolve


def which(
    asked: Job | Mapping[str, Any] | str | Path,
    task: str | None = None,
    *,
    within: str | None = None,
    under: str | None = None,
    memory: str | None = None,
    context: int | None = None,
    concurrency: int = 1,
    sequence: int | None = None,
    batch: int = 1,
    tokens: str | float | None = None,
    max_gpus: int = MOST_GPUS,
    top: int | None = 20,
    today: date | None = None,
    allow_files: bool = True,
    watch: Watch = lambda tried: None,
) -> Which:
    """Every card, and how few of it, on which a model is used in a usual way, or on which a job fits.

    `asked`: a model's name with a `task` (serve, serve-8bit, serve-4bit, serve-gguf, qlora, lora, full, full-mixed), or a job: a
    `Job`, a mapping, or the path of a job or of a framework's file, whose hardware does not count. `within`: 24h, 3d; `under`:
    $50 for the whole run, $2/h; both of runs that say what they process (`tokens`, or the job). `memory`: cards sold with 24GB,
    24GB..80GB.
    `top`: how many rows; None: all of them, without how fast each is.
    `context`, `concurrency`, `sequence` and `batch`: as for `fit`. An interrupt ends the search and keeps what was found.
    Raises `InvalidJob`, `NotModelled` and `UnknownName`.
    """
    limits = Within(None if within is None else amounts.hours(within), None if under is None else amounts.money(under))
    case: Own | Usual | None = _own(asked, task, allow_files)
    if case is None:
        name = slug(task or "serve")
        lengths = Lengths(context, concurrency, sequence, batch, tokens)
        case = usual(asked, name, lengths, allow_files)
    elif context or sequence or tokens:
        raise Contradiction("a job says itself how long its sequences are and what it processes", "context, sequence, tokens")
    search = Search(case, limits, today or date.today(), allow_files, max_gpus)
    search.refuse_limits()
    if not 1 <= max_gpus <= 2**17:
        raise InvalidValue(f"write a number from 1 to {2**17}, not {max_gpus}", "max_gpus")
    every = cards(None if memory is None else amounts.memory(memory))
    if not every:
        raise InvalidValue(f"no card is sold with {memory}; `willitfit gpus` lists them", "memory")
    try:
        search.run(every, watch)
    except KeyboardInterrupt:
        search.complete = False
    if search.refused and not search.rows and not search.failed:
        raise search.refused
    return _answer(search, top)


def _own(asked: Job | Mapping[str, Any] | str | Path, task: str | None, allow_files: bool) -> Own | None:
    """The job that was asked about; None where it is a model."""
    if isinstance(asked, str | Path):
        path = Path(asked)
        if not allow_files or "\0" in str(asked) or len(str(asked)) > 4000 or not is_configuration(path):
            return None
        job = read_job(read_file(path).job)
    elif isinstance(asked, Job) or "model" in asked:
        job = read_job(asked)
    else:
        return None
    if task is not None:
        raise Contradiction("a job says itself what it does: leave the task out, or name a model in place of the job", "task")
    resolve(job.model, allow_files)
    return Own(job, allow_files)


def _answer(search: Search, top: int | None) -> Which:
    """All that was found, the smallest first."""
    rows = sorted(search.rows, key=_size)
    smallest = rows[0] if rows else None
    cheapest = min((row for row in rows if row.price_per_hour), key=_price, default=None)
    shown = rows if top is None else [with_speed(row, search.allow_files) for row in rows[:top]]
    return Which(
        model=_model(search),
        way=search.case.title,
        possible=True if rows else None if search.unknown or not search.complete else False,
        reason=_reason(search, rows),
        smallest=smallest and with_speed(smallest, search.allow_files),
        too_small=_too_small(search, smallest),
        cheapest=cheapest and with_speed(cheapest, search.allow_files),
        found=len(rows),
        rows=shown,
        tried=search.tried,
        complete=search.complete,
        unknown=list(_not_known(search)),
        assumptions=list(_assumptions(search, shown)),
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def with_speed(row: WhichRow, allow_files: bool) -> WhichRow:
    """A row with how fast it is; it is asked of those that are shown, as it takes longer than whether they fit."""
    return row.model_copy(update={"tokens_per_second": tokens_per_second(row.job, allow_files)})


def _model(search: Search) -> str:
    if isinstance(search.case, Usual):
        return search.case.question.found.name
    return resolve(search.case.job.model, search.allow_files).name


def _too_small(search: Search, smallest: WhichRow | None) -> TooLittle | None:
    below = [one for one in search.failed if smallest is None or one.offered_bytes <= smallest.offered_bytes]
    if below:
        return max(below, key=lambda one: (one.offered_bytes, -(one.needed_bytes or 0)))
    return None


def _reason(search: Search, rows: list[WhichRow]) -> str:
    if rows:
        return f"{rows[0].gpus * rows[0].nodes} x {rows[0].accelerator} is the smallest that does it"
    if not search.complete:
        return "interrupted before any was found that does it"
    if search.unknown:
        return f"none of up to {search.most} GPUs is known to do it, and of some cards it is not known"
    return f"no card does it with up to {search.most} GPUs"


def _not_known(search: Search) -> Iterator[NotKnown]:
    for (verdict, why), names in search.unknown.items():
        yield NotKnown(accelerators=list(dict.fromkeys(names)), verdict=verdict, why=why)


def _assumptions(search: Search, shown: list[WhichRow]) -> Iterator[str]:
    if isinstance(search.case, Usual):
        if search.case.slug.startswith("serve"):
            asked = search.case.serving
            yield f"served: {asked['concurrency']} x {asked['context']} tokens at the same time"
            yield "on several GPUs of a node each layer is split (tensor parallel); llama.cpp is asked for one GPU only"
        else:
            asked = search.case.training
            yield f"trained: {asked['micro_batch_size']} x {asked['sequence_length']} tokens on each GPU"
    elif search.case.job.task == "train":
        yield "the batch is the job's, or one sequence for each GPU where there are more of them"
    if any(row.tokens_per_second for row in shown):
        yield SPEED
    if search.processes:
        yield HOURS
        if search.limits.hours is None:
            yield "of a card of which no price is known the fewest GPUs that do it"
    else:
        yield "of each card the fewest GPUs that do it: one, two, four, … in a node, and nodes of them where such are known"
    yield "prices: the cheapest offer in which a node's GPUs are together, whole instances, on demand unless the job says so"


def _size(row: WhichRow) -> tuple[int, int, Decimal, str]:
    price = Decimal(row.price_per_hour) if row.price_per_hour else Decimal("Infinity")
    return row.offered_bytes, row.gpus * row.nodes, price, row.accelerator


def _price(row: WhichRow) -> tuple[Decimal, int]:
    return Decimal(row.total or row.price_per_hour or 0), row.offered_bytes
