"""Pages that look for ways to run a job: the best ways to train, and how many copies of a served model bear a load."""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import InvalidValue
from estimator.facts.spelling import shown
from estimator.planner.plan import plan
from estimator.planner.plan_answer import Plan
from estimator.planner.replicas import replicas
from estimator.planner.replicas_answer import Replicas

from .asked import Asked
from .job import job_items, lowered
from .of_job import job_asked, trained
from .of_model import needed

MOST_SIMULATED = 200
"""Ways to run a job that one question may have simulated."""
WAYS = 6
"""Ways to train that a page tells."""
NEAR = 6
"""Ways near each of the best that a page tells."""
ROWS = 12
"""Cards that a page lists."""
MOST = 10**6
"""Requests a second, and seconds."""
OF_PLANS = ("within", "under", "allow", "deny", "memory", "keep_global_batch")
"""Fields of the page of the best ways that are no job's."""
OF_LOADS = ("requests", "prompt", "output", "ttft", "tpot")
"""Fields of the page of copies that are no job's."""


def best_ways(asked: Asked) -> dict[str, Any]:
    """The ways to train that none beats in money, time and memory left."""
    if asked.get("on").lower() == "any":
        asked = Asked([item for item in asked.items if item[0] != "on"])
    job, items, found = job_asked(trained(asked), *OF_PLANS)
    fields = [(name, value) for name in OF_PLANS for value in asked.all(name)]
    wanted: dict[str, Any] = {name: [part for value in asked.all(name) for part in value.split()] for name in ("allow", "deny")}
    wanted |= {name: asked.get(name) or None for name in ("within", "under", "memory")}
    keep = asked.get("keep_global_batch").lower() in ("true", "on", "1")
    ways = plan(job, **wanted, keep_global_batch=keep, top=WAYS, most=MOST_SIMULATED, allow_files=False)
    names = [name for name in ("cheapest", "quickest", "roomiest") if getattr(ways, name) is not None]
    return found | {
        "title": f"The best ways to {lowered(found['question'])}",
        "plan": ways,
        "rows": [
            {
                "row": row,
                "items": job_items(row.job),
                "best": [name for name in names if getattr(ways, name) == at],
                "changes": [(name, value) for name, value in row.changes.items() if not name.startswith("hardware.")],
                "near": [one for one in row.neighbours if one.fits is not None][:NEAR],
            }
            for at, row in enumerate(ways.rows)
        ],
        "said": _best(ways),
        "api": ("v1/plan", [*items, *fields]),
    }


def _best(ways: Plan) -> str:
    """What is best of all that was found, in a sentence."""
    at = next((one for one in (ways.cheapest, ways.quickest, ways.roomiest) if one is not None), None)
    if at is None or not ways.possible:
        return ways.reason
    row = ways.rows[at]
    what = "The cheapest" if at == ways.cheapest else "The quickest" if at == ways.quickest else "The one with most memory left"
    facts = [
        "" if row.hours is None else f"{row.hours:,.1f} hours",
        f"{row.total} {ways.currency}"
        if row.total
        else f"{row.million_tokens} {ways.currency} a million tokens"
        if row.million_tokens
        else "",
        "" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f} tokens per second",
    ]
    said = ", ".join(fact for fact in facts if fact)
    return f"{what} is on {row.gpus * row.nodes} × {row.accelerator or 'the card'}{f': {said}' if said else ''}. {ways.reason}."


def copies(asked: Asked) -> dict[str, Any]:
    """How many copies of a served model bear a load."""
    of_job = any(name not in ("model", "on", *OF_LOADS) for name, _ in asked.items)
    model = needed(asked, "model")
    found: dict[str, Any] = {"replicas": None}
    if of_job:
        job, _, said = job_asked(asked, *OF_LOADS)
        found |= said
    if not asked.get("requests"):
        if not of_job:
            raise InvalidValue("say how many requests come in a second: 10, or 0.5", "requests")
        return found | {"title": f"{found['question']}: how many copies?"}
    rate = {name: _positive(asked, name) for name in ("requests", "ttft", "tpot")}
    lengths = asked.numbers("prompt", "output")
    load: dict[str, Any] = {"ttft": rate["ttft"], "tpot": rate["tpot"], "on": asked.get("on") or None, "top": ROWS}
    borne = replicas(job if of_job else model, rate["requests"] or 0.0, allow_files=False, **lengths, **load)
    api = {} if of_job else {"api": ("v1/replicas", asked.items)}
    many = borne.load.requests_per_second
    return found | {
        "title": f"How many copies of {borne.model} bear {many:,g} request{'' if many == 1 else 's'} a second?",
        "replicas": borne,
        "rows": [(row, job_items(row.job)) for row in borne.rows],
        "said": _cheapest(borne),
        **api,
    }


def _cheapest(borne: Replicas) -> str:
    """What the copies cost and whether that is certain; where none bear the load, why."""
    row = borne.cheapest
    if row is None:
        return f"{borne.reason[:1].upper()}{borne.reason[1:]}."
    doubt = "" if row.certain else "; with slow kernels it takes more, or a limit is broken"
    return f"The cheapest: {row.price_per_hour} {row.currency} an hour at {row.provider}{doubt}."


def _positive(asked: Asked, name: str) -> float | None:
    text = asked.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MOST:
        raise InvalidValue(f"{shown(text)} is no number above 0: write one such as 10 or 0.5", name)
    return value
