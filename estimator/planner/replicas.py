"""How many copies of a served model bear a load, and on which hardware they cost least."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from math import ceil, isfinite
from pathlib import Path
from typing import Any

from estimator.contract.answer import Versions
from estimator.contract.errors import Contradiction, InvalidJob, InvalidValue, NotModelled
from estimator.contract.job import Hardware, Job, read_job
from estimator.contract.units import money
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange.documents import is_configuration, read_file
from estimator.hardware.parse import hardware_of
from estimator.parallel.topology import tensor_degrees
from estimator.planner.bearing import Borne, Copy, Limits
from estimator.planner.fleet import SERVER, cards
from estimator.planner.replicas_answer import Load, NotBorne, Replicas, ReplicasRow
from estimator.pricing.cost import suiting
from estimator.pricing.offer import Offer
from estimator.pricing.prices import offers
from estimator.specs.resolve import resolve

ALL = "of all hardware, cards that can be rented, up to eight in a node for one copy"
ASSUMPTIONS = [
    "copies are alike, each a server of its own; requests come at random and are shared out evenly",
    "prompts and answers are as long as said, and no prompt was read before; prompts of very different lengths wait longer",
    "the time to the first token is the mean: who comes behind several prompts waits longer",
    "the times have the ranges that docs/serving_time.md measures: range_replicas says what they mean here",
]
SIZES = (1, 2, 4, 8, 16)
"""GPUs of one copy that are tried."""
USUAL = (1024, 256)
"""Tokens of a prompt and of an answer where nothing is said of them, or as much as the model has positions for."""
LONGEST = 2**24
"""Tokens of a prompt, or of an answer."""


@dataclass(slots=True)
class _Search:
    """What is asked of each hardware, and what was found."""

    job: Mapping[str, Any]
    load: Load
    limits: Limits
    today: date
    allow_files: bool
    rows: list[ReplicasRow] = field(default_factory=list)
    failed: list[NotBorne] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    refused: InvalidJob | NotModelled | None = None

    def attempt(self, hardware: Hardware, most_gpus: int | None) -> bool:
        """One copy on the hardware, and how many of it; `most_gpus`: that are there. Whether one copy is enough."""
        name, gpus = hardware.gpu or f"{hardware.memory or hardware.ram}", hardware.gpus
        copy = Copy(_spread(self.job, hardware), self.allow_files)
        try:
            most = copy.most(self.limits)
        except (InvalidJob, NotModelled) as error:
            self.refused = error
            return False
        if most is None:
            self.unknown += [name] if name not in self.unknown else []
            return False
        if isinstance(most, str):
            self.failed.append(NotBorne(accelerator=name, gpus=gpus, reason=most))
            return False
        found = self._enough(copy, most)
        if isinstance(found, str):
            self.failed.append(NotBorne(accelerator=name, gpus=gpus, reason=found))
            return False
        count, here = found
        if most_gpus is not None and count * gpus > most_gpus:
            reason = f"{count} copies on {gpus} each are {count * gpus} GPUs, and {most_gpus} are there"
            self.failed.append(NotBorne(accelerator=name, gpus=gpus, reason=reason))
            return False
        self.rows.append(self._row(hardware, name, count, here, most))
        return count == 1 and self.rows[-1].certain

    def _enough(self, copy: Copy, most: Borne) -> tuple[int, Borne] | str:
        """The fewest copies that keep the limits at this load, and one of them; why more do not help."""
        wanted = self.load.requests_per_second
        count = max(1, ceil(wanted / most.rate - 1e-9))
        for more in (0, *(2**n for n in range(12))):
            each = wanted / (count + more)
            here = copy.least(each, most)
            if not (broken := here.broken(self.limits, each)):
                break
        else:
            return broken
        low, high = (max(1, count + more // 2), count + more)
        while more and low < high:
            middle = (low + high) // 2
            one = copy.least(wanted / middle, most)
            if one.broken(self.limits, wanted / middle):
                low = middle + 1
            else:
                high = middle
        return high, copy.least(wanted / high, most)

    def _row(self, hardware: Hardware, name: str, count: int, here: Borne, most: Borne) -> ReplicasRow:
        each = self.load.requests_per_second / count
        faster, slower = (seconds / most.time.request_seconds for seconds in most.time.range_request_seconds)
        priced = self._priced(hardware, count)
        offer = priced[0] if priced else None
        return ReplicasRow(
            accelerator=name,
            gpus=hardware.gpus,
            replicas=count,
            range_replicas=(min(count, _copies(self.load, most, faster)), max(count, _copies(self.load, most, slower))),
            total_gpus=count * hardware.gpus,
            most_requests_per_second=most.rate,
            most_sequences=most.sequences,
            sequences=here.sequences,
            time_to_first_token_seconds=here.first(each),
            time_per_output_token_seconds=here.time.time_per_output_token_seconds,
            range_time_per_output_token_seconds=here.time.range_time_per_output_token_seconds,
            certain=_copies(self.load, most, slower) <= count and not here.broken(self.limits, each, slow=True),
            provider=offer and offer.provider,
            instance=offer and offer.instance,
            instances=priced[1] if priced else None,
            price_per_hour=money(priced[2]) if priced else None,
            currency=offer and offer.currency,
            price_as_of=str(offer.as_of) if offer and offer.as_of else None,
            job=_at(_spread(self.job, hardware), here.sequences),
        )

    def _priced(self, hardware: Hardware, count: int) -> tuple[Offer, int, Decimal] | None:
        """The cheapest offer, how many of it, and what an hour of all costs; a copy's GPUs are in one instance."""
        known = []
        for offer in suiting(hardware, hardware.gpu, self.today) if hardware.gpu else []:
            if offer.gpus >= hardware.gpus:
                many = ceil(count / (offer.gpus // hardware.gpus))
                known.append((offer, many, many * offer.price_per_hour))
        return min(known, key=lambda one: one[2], default=None)


def replicas(
    asked: Job | Mapping[str, Any] | str | Path,
    requests_per_second: float,
    *,
    prompt: int | None = None,
    output: int | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
    on: str | Hardware | None = None,
    top: int | None = 20,
    today: date | None = None,
    allow_files: bool = True,
) -> Replicas:
    """How many copies of a model bear a load, on each card and on several of it, and which cost least.

    `asked`: a model's name, or a serving job, whose hardware does not count unless `on` names some: then no more GPUs than these.
    `prompt` and `output`: tokens (1024 and 256, or the job's); `ttft` and `tpot`: seconds at most to the first token in the mean,
    and for each token after it. Raises `InvalidJob`, `NotModelled` and `UnknownName`.
    """
    for name, value in (("requests", requests_per_second), ("ttft", ttft), ("tpot", tpot)):
        if value is not None and not (isfinite(value) and 0 < value <= 10**6):
            raise InvalidValue(f"write a number above 0 and up to a million, not {value:g}", name)
    job = _job(asked, prompt, output, allow_files)
    whole = read_job(job)
    spec = resolve(whole.model, allow_files).spec
    if spec.encodes or whole.serving.runner == "pooling":
        raise NotModelled(f"how fast {spec.model_type} models give vectors is not modelled; only answers of text are", "model")
    given = whole.serving.lengths
    load = Load(
        requests_per_second=requests_per_second,
        prompt_tokens=given[0],
        output_tokens=given[1],
        time_to_first_token_seconds=ttft,
        time_per_output_token_seconds=tpot,
    )
    search = _Search(job, load, Limits(ttft, tpot), today or date.today(), allow_files)
    machine = None if on is None else hardware_of(on)
    degrees = set(tensor_degrees(spec))
    there = None if machine is None else machine.gpus * machine.nodes
    for sizes in _each(machine, degrees):
        for hardware in sizes:
            if search.attempt(hardware, there):
                break  # more of it for one copy cost more
    if search.refused and not (search.rows or search.failed or search.unknown):
        raise search.refused
    assumptions = [ALL, *ASSUMPTIONS] if machine is None else ASSUMPTIONS
    return _answer(search, resolve(whole.model, allow_files).name, top, assumptions)


def _job(
    asked: Job | Mapping[str, Any] | str | Path, prompt: int | None, output: int | None, allow_files: bool
) -> dict[str, Any]:
    """The job as it was given, that serves, with the lengths."""
    if isinstance(asked, str | Path):
        path = Path(asked)
        file = allow_files and "\0" not in str(asked) and len(str(asked)) <= 4000 and is_configuration(path)
        said: Any = read_file(path).job if file else {"model": str(asked), "task": "serve"}
    else:
        said = asked
    job: dict[str, Any] = read_job(said).model_dump(exclude_unset=True)
    if job.get("task") != "serve":
        raise Contradiction("copies bear requests of a job that serves: write task: serve", "task")
    serving = dict(job.get("serving") or {})
    lengths = {"prompt_length": prompt, "output_length": output}
    for name, length in lengths.items():
        if length is not None and not 1 <= length <= LONGEST:
            raise InvalidValue(f"write a number of tokens from 1 to {LONGEST}, not {length}", name.partition("_")[0])
        if length is not None:
            serving[name] = length
    if "context" not in serving and not {"prompt_length", "output_length"} & serving.keys():
        spec = resolve(job["model"], allow_files).spec
        most = spec.most_targets or spec.longest_sequence or sum(USUAL)
        serving |= dict(
            zip(("prompt_length", "output_length"), USUAL if most >= sum(USUAL) else (most - most // 5, most // 5), strict=True)
        )
    elif "context" not in serving:
        serving.setdefault("prompt_length", USUAL[0])
        serving.setdefault("output_length", USUAL[1])
    if serving.get("prompt_length") and serving.get("output_length"):
        serving["context"] = max(serving.get("context") or 0, serving["prompt_length"] + serving["output_length"])
    return {**job, "serving": serving}


def _spread(job: Mapping[str, Any], hardware: Hardware) -> dict[str, Any]:
    """One copy's job on the hardware, its layers divided over all GPUs."""
    rent = (job.get("hardware") or {}).get("rent")
    machine = hardware.model_dump(exclude_unset=True) | ({"rent": rent} if rent else {})
    return {**job, "hardware": machine, "parallelism": {"tensor": hardware.gpus}}


def _at(job: Mapping[str, Any], sequences: int) -> dict[str, Any]:
    return read_job({**job, "serving": {**job["serving"], "concurrency": sequences}}).model_dump(mode="json", exclude_unset=True)


def _each(machine: Hardware | None, degrees: set[int]) -> Iterator[list[Hardware]]:
    """Of each card the hardware of one copy: one, two, four, … in one node. Of all cards those that can be rented."""
    if machine is not None:
        yield [machine.model_copy(update={"gpus": n, "nodes": 1}) for n in SIZES if n <= machine.gpus and n in degrees]
        return
    rented = {offer.accelerator for offer in offers()}
    for card in cards():
        if card.name in rented:
            yield [Hardware(gpu=card.name, gpus=n) for n in SIZES if n <= SERVER and n in degrees]


def _copies(load: Load, most: Borne, slower: float) -> int:
    """Copies that bear the load where each is slower by a factor."""
    return max(1, ceil(load.requests_per_second * slower / most.rate - 1e-9))


def _answer(search: _Search, model: str, top: int | None, assumptions: list[str]) -> Replicas:
    rows = sorted(search.rows, key=_order)
    cheapest = rows[0] if rows and rows[0].price_per_hour else None
    fewest = min(rows, key=lambda row: (row.total_gpus, *_order(row)), default=None)
    return Replicas(
        model=model,
        load=search.load,
        possible=True if rows else None if search.unknown else False,
        reason=_reason(search, cheapest or fewest),
        cheapest=cheapest,
        fewest=fewest,
        found=len(rows),
        rows=rows[:top],
        failed=search.failed[:top],
        unknown=search.unknown,
        assumptions=assumptions,
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def _order(row: ReplicasRow) -> tuple[bool, Decimal, int]:
    return row.price_per_hour is None, Decimal((row.price_per_hour or "0").replace(",", "")), row.total_gpus


def _reason(search: _Search, best: ReplicasRow | None) -> str:
    if best is not None:
        copies = "one copy" if best.replicas == 1 else f"{best.replicas} copies"
        return f"{copies} on {best.gpus} x {best.accelerator} each" + (
            "" if best.certain else ", if kernels are as fast as expected"
        )
    if search.failed:
        last = search.failed[-1]
        return f"no number of copies; on {last.gpus} x {last.accelerator}: {last.reason}"
    return f"no speed is known on {', '.join(search.unknown[:4])}" if search.unknown else "nothing was tried"
