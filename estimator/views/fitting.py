"""The models of the catalogue that fit on some hardware: newest first, until there are as many as were asked for.

What a model's weights alone forbid is not simulated; the others are, one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from estimator.contract.errors import InvalidJob, InvalidValue
from estimator.contract.job import Hardware
from estimator.contract.rows import Fitting, FittingRow, NotAnswered
from estimator.hardware.capacity import Capacity, capacity
from estimator.hardware.parse import hardware_of
from estimator.pipeline.estimation import time_of
from estimator.pipeline.verdict import offered
from estimator.planner.cases import Done, Lengths, Refused, Usual, usual
from estimator.planner.ways import Way, of_task
from estimator.views.listing import models

Watch = Callable[[int], None]
"""Told how many models have been looked at."""
ROWS = 20


def fitting(
    on: str | Hardware,
    task: str = "serve",
    *,
    search: str = "",
    least: float = 0,
    most: float = inf,
    context: int | None = None,
    concurrency: int = 1,
    sequence: int | None = None,
    batch: int = 1,
    top: int = ROWS,
    watch: Watch = lambda looked_at: None,
) -> Fitting:
    """The models that fit on some hardware ('24GB', '2x24GB', or what `estimator.here()` found), the newest first.

    `task`: serve, in the widest type of weights that fits; or one of serve-8bit, serve-4bit, serve-gguf, qlora,
    lora, full, full-mixed.
    `search`, `least` and `most`: words of a name, and parameters, as `willitfit models` takes them. `context`, `concurrency`,
    `sequence`, `batch`: as for `fit`. `top`: rows after which it ends; an interrupt ends it, too. Raises as `fit` does.
    """
    hardware = hardware_of(on)
    card = capacity(hardware)
    if card.memory_bytes is None:
        raise InvalidValue("say what it is to run on, such as 24GB or rtx-4090", "hardware")
    names = of_task(task)
    known = sorted(models(search, least, most), key=lambda row: (row["released"] or "", row["parameters"]), reverse=True)
    search_ = _Search(hardware, card, names, Lengths(context, concurrency, sequence, batch))
    complete = True
    try:
        for row in known:
            if len(search_.rows) >= top:
                break
            search_.look_at(row)
            watch(search_.looked_at)
    except KeyboardInterrupt:
        complete = False
    return Fitting(
        hardware=" ".join(on.split()) if isinstance(on, str) else on.model_dump_json(exclude_defaults=True),
        task=task,
        capacity_bytes=card.memory_bytes,
        known=len(known),
        looked_at=search_.looked_at,
        rows=search_.rows,
        too_large=search_.too_large,
        too_short=search_.too_short,
        unknown=[NotAnswered(models=names, verdict=verdict, why=why) for (verdict, why), names in search_.unknown.items()],
        complete=complete,
    )


@dataclass(slots=True)
class _Search:
    """What was found of the models that were looked at."""

    hardware: Hardware
    card: Capacity
    slugs: list[str]
    lengths: Lengths
    looked_at: int = 0
    rows: list[FittingRow] = field(default_factory=list)
    too_large: list[str] = field(default_factory=list)
    too_short: list[str] = field(default_factory=list)
    unknown: dict[tuple[Any, str], list[str]] = field(default_factory=lambda: defaultdict(list))

    def look_at(self, row: dict[str, Any]) -> None:
        """Whether a model fits, in the first of the ways in which it does; unknown, if it is not known of one of them."""
        self.looked_at += 1
        name, refused = row["name"], None
        served = self.slugs[0].startswith("serve")
        asked = self.lengths.context if served else self.lengths.sequence
        if asked is not None and row["context"] is not None and asked > row["context"]:
            self.too_short.append(name)
            return
        for each in self.slugs:
            case = usual(name, each, self.lengths)
            try:
                found = case.on(self.hardware, self.card, idle=True)
            except InvalidJob as error:
                refused = refused or Refused("unknown", str(error))
                continue
            if isinstance(found, Refused):
                refused = refused or found
            elif isinstance(found, Done) and found.judged.verdict.fits:
                self.rows.append(self._row(row, case, found))
                return
        if refused is None:
            self.too_large.append(name)
        else:
            self.unknown[refused.verdict, refused.why].append(name)

    def _row(self, row: dict[str, Any], case: Usual, found: Done) -> FittingRow:
        memory, job, way = found.judged.memory, found.judged.job, case.way(self.card)
        assert isinstance(way, Way)
        time = time_of(job)
        limit = offered(memory.capacity_bytes, job)
        return FittingRow(
            name=row["name"],
            parameters=row["parameters"],
            released=row["released"],
            way=way.way,
            spread=found.spread,
            verdict="fits" if found.judged.verdict.verdict == "fits" else "tight",
            total_bytes=memory.total_bytes,
            headroom_bytes=None if limit is None else limit - memory.total_bytes,
            tokens=job.serving.context if job.task == "serve" else job.training.sequence_length,
            longest_context=memory.engine.longest_context if memory.engine else None,
            tokens_per_second=None if time is None else time.tokens_per_second,
            job=job.model_dump(mode="json", exclude_defaults=True),
        )
