"""A question answered in few words, for what is put into other pages: a badge, a frame.

What may be asked: a job by its fields (with `task`), one usual way of using a model (`model`, `on`, `way`), or all of them.
"""

from __future__ import annotations

from typing import NamedTuple

from estimator.contract.errors import InvalidValue
from estimator.contract.units import gib
from estimator.hardware.capacity import capacity
from estimator.hardware.parse import read_hardware
from estimator.pipeline.estimation import estimate
from estimator.pipeline.verdict import offered
from estimator.planner.cases import Done, Lengths, TooMuch, usual
from estimator.planner.headline import fit
from estimator.planner.headline_answer import FitRow
from estimator.planner.ways import slug

from ..query import job_mapping
from .asked import Asked, Items
from .forms import TASKS
from .job import hardware, job_items, what
from .of_model import LENGTHS, needed
from .pictures import room
from .spelled import meant, placed, use_of


class Summary(NamedTuple):
    """An answer in few words."""

    what: str
    """What is asked, without the hardware: Fine-tune llama-3-8b with QLoRA."""
    where: str
    """The hardware, as it was asked for; empty where none is named."""
    verdict: str
    """fits, tight, does not fit, unknown, does not run; of several ways `fits` if all do, `tight` if some do."""
    said: str
    """The verdict in a few words, with what is needed of one GPU where that is known: fits · 9.9 of 23.6 GiB."""
    reason: str
    total_bytes: int | None = None
    """What is needed of one GPU; null where it is not known, and of several ways."""
    offered_bytes: int | None = None
    items: Items = []
    """The question, as a page's address has it."""
    rows: list[FitRow] = []
    """Of several ways each, with what is known of it."""
    currency: str = ""
    """Of what a run of the rows costs."""

    @property
    def question(self) -> str:
        """What is asked, in words."""
        return f"{self.what} on {self.where}" if self.where else self.what


def summary(asked: Asked) -> Summary:
    """The answer to what was asked. Raises as `estimate` and `fit` do."""
    asked = placed(Asked(asked.without("label")))
    use = use_of(asked)
    if asked.get("task") in ("train", "serve") or any("." in name for name, _ in asked.items):
        return _of_job(asked)
    return _of_way(asked, slug(use)) if use else _of_all(asked)


def _of_job(asked: Asked) -> Summary:
    items = meant(asked).items
    answer = estimate(job_mapping(items), allow_files=False)
    where = asked.get("on") or hardware(answer.job["hardware"])
    total, limit = answer.memory.total_bytes, room(answer)
    cost = answer.cost if answer.run and answer.run.hours else None
    run = "" if cost is None or answer.run is None else _run(answer.run.hours, cost.total, cost.currency)
    said = _said(answer.verdict, total, limit) + run
    return Summary(what(answer.job), where, answer.verdict, said, answer.reason, total, limit, items)


def _of_way(asked: Asked, way: str) -> Summary:
    model, on = needed(asked, "model"), needed(asked, "on")
    machine = read_hardware(on).hardware
    card = capacity(machine)
    if card.memory_bytes is None:
        raise InvalidValue("say what it is to run on, such as 24GB or rtx-4090", "hardware")
    case = usual(model, way, Lengths(**asked.numbers(*LENGTHS)), allow_files=False)
    found = case.on(machine, card, idle=True)
    name = TASKS[way].format(case.question.found.name)
    if isinstance(found, Done):
        memory, verdict, job = found.judged.memory, found.judged.verdict, found.judged.job
        limit = offered(memory.capacity_bytes, job)
        items = job_items(job.model_dump(mode="json"))
        said = _said(verdict.verdict, memory.total_bytes, limit)
        if job.task == "train" and asked.get("tokens"):
            whole = fit(model, on, False, **asked.numbers(*LENGTHS), task=way, tokens=asked.get("tokens"))
            said += _run(whole.rows[0].hours, whole.rows[0].total, whole.rent.currency if whole.rent else "")
            items.append(("training.tokens", asked.get("tokens")))
        return Summary(name, on, verdict.verdict, said, verdict.reason, memory.total_bytes, limit, items)
    items = [("model", model), ("on", on)]
    if isinstance(found, TooMuch):
        return Summary(name, on, "does not fit", "does not fit", found.reason, items=items)
    kind, why = ("unknown", "no way to spread it over these GPUs") if found is None else found
    return Summary(name, on, kind, kind, why, items=items)


def _of_all(asked: Asked) -> Summary:
    model, on = needed(asked, "model"), needed(asked, "on")
    found = fit(model, on, False, **asked.numbers(*LENGTHS), tokens=asked.get("tokens") or None)
    good, known = sum(bool(row.fits) for row in found.rows), sum(row.fits is not None for row in found.rows)
    verdict = "unknown" if not known else "fits" if good == len(found.rows) else "tight" if good else "does not fit"
    said = f"{good} of {len(found.rows)} usual ways fit" if known else "unknown"
    currency = found.rent.currency if found.rent else ""
    reason = "; ".join(_of_row(row, currency) for row in found.rows)
    if found.rent:
        reason += f". Rents from {found.rent.price_per_hour} {found.rent.currency} an hour"
    items = [(name, asked.get(name)) for name in ("model", "on", *LENGTHS, "tokens") if asked.get(name)]
    return Summary(f"Use {found.model}", on, verdict, said, reason, items=items, rows=found.rows, currency=currency)


def _of_row(row: FitRow, currency: str) -> str:
    speed = "" if row.tokens_per_second is None else f", {row.tokens_per_second:,.0f} tokens/s"
    return f"{row.way}: {row.verdict}{speed}{_run(row.hours, row.total, currency)}"


def _run(hours: float | None, total: str | None, currency: str) -> str:
    """How long a training run takes and what it costs, to go on with; nothing where it is not known."""
    return "" if hours is None else f" · {hours:,.1f} h" + (f", {total} {currency}" if total else "")


def _said(verdict: str, total: int, limit: int | None) -> str:
    needs = gib(total) if limit is None else f"{gib(total).removesuffix(' GiB')} of {gib(limit)}"
    return f"{verdict} · {needs}"
