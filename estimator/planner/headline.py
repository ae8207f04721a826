"""The headline question: will this model fit on that hardware, in every usual way of using it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from estimator.contract.answer import Versions
from estimator.contract.answer.part import IN_RAM
from estimator.contract.errors import Contradiction, InvalidValue, NotModelled
from estimator.contract.job import Hardware, Job, read_job
from estimator.contract.units import gib, parse_count
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.families.other import OtherSpec
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity, capacity
from estimator.hardware.parse import ReadHardware, read_hardware
from estimator.pipeline.judged import Judged
from estimator.pipeline.notes.hardware import without_cuda
from estimator.pipeline.verdict import offered
from estimator.planner.by_engine import engine_of, served_by
from estimator.planner.changes import Change, smallest_change
from estimator.planner.headline_answer import Fit, FitRow
from estimator.planner.headline_notes import of_platform, seen, taken_for_granted
from estimator.planner.spreads import Question, Tried, tried, unshared
from estimator.planner.ways import APPLE, HOURS, SPEED, Platform, Way, of_task, platform, ways
from estimator.serving.engines import ENGINES
from estimator.serving.llamacpp.cache import CELLS
from estimator.serving.llamacpp.engine import LLAMA_CPP
from estimator.serving.vllm.engine import VLLM
from estimator.serving.vllm.settings import not_run
from estimator.simulation.simulation import WITHOUT_BYTES
from estimator.specs.resolve import OF_THE_JOB, Model, resolve
from estimator.specs.stored import Stored
from estimator.tape.lifetimes import uncollected

if TYPE_CHECKING:
    from estimator.planner.renting import Rented

OF_ONE_ROW = " Only the row of the file is for its types"
CONTEXT = 4096
"""Tokens of a served sequence, unless the question says; fewer where the model has positions for fewer."""
SEQUENCE = 2048
"""Tokens of a sequence in training, likewise."""


def fit(
    model: str | dict[str, Any],
    hardware: str | Hardware,
    allow_files: bool = True,
    *,
    context: int | None = None,
    concurrency: int = 1,
    sequence: int | None = None,
    batch: int = 1,
    task: str | None = None,
    tokens: str | float | None = None,
    engine: str | None = None,
) -> Fit:
    """Every usual way of using a model on some hardware ('2x24GB', 'rtx-4090', '8xH100', '2 nodes of 8xA100-80GB').

    `context`: tokens of a served sequence, of which `concurrency` are served at the same time. `sequence`: tokens of one in
    training, of which each GPU has `batch` at a time. `task`: only the rows of one, such as serve or qlora. `tokens`: what a
    training run processes (100M, 1e9), for its hours and its cost. `engine`: only the rows of serving, by it: vllm, sglang,
    tensorrt-llm, llama.cpp, ollama; without it vLLM and llama.cpp.
    `allow_files` False refuses models named by a path. Raises `UnknownName`, `InvalidJob` and `NotModelled`.
    """
    if not isinstance(hardware, str | Hardware):
        raise Contradiction(f"write text, such as 2x24GB or rtx-4090, not {type(hardware).__name__}", "hardware")
    machine, understood = read_hardware(hardware) if isinstance(hardware, str) else ReadHardware(hardware)
    found = resolve(model, allow_files)
    card = capacity(machine)
    kind = platform(card)
    most = found.spec.longest_sequence or CONTEXT
    written = found.spec.most_targets or most
    serving = {"context": min(CONTEXT, written) if context is None else context, "concurrency": concurrency}
    training: dict[str, Any] = {"sequence_length": min(SEQUENCE, most) if sequence is None else sequence}
    training |= {"micro_batch_size": batch, **({} if tokens is None else {"tokens": counted(tokens)})}
    read_job({"model": "gpt2", "serving": serving, "training": training})  # whatever the model is, they are fields of a job
    every = ways(kind, serving, training)
    if engine is not None:
        every = served_by(engine, every, kind)
    asked = for_model(found, kind, every)
    if task is not None:
        chosen = of_task(task)
        asked = [way for way in asked if way.answers(*chosen)] or [way for way in every if way.answers(*chosen)]
        if not asked:
            of = "serving" if engine else "using"
            raise NotModelled(f"{task} is not among the usual ways of {of} a model on {kind.name}", "task")
    question = Question(found.name if found.published else model, found, allow_files)
    refuse_unlike({way.part for way in asked}, context, sequence, tokens)
    rows = [_row(question, way, machine, kind, card) for way in asked]
    if found.mlx and kind.name == APPLE and any(way.part == "serving" for way in asked):
        rows.insert(0, _by_mlx(found, machine, card, context or min(CONTEXT, most), concurrency))
    rent = _rent(machine, card, hardware if isinstance(hardware, str) else "")
    return Fit(
        model=found.name,
        hardware=" ".join(hardware.split()) if isinstance(hardware, str) else machine.model_dump_json(exclude_none=True),
        parameters=question.parameters,
        capacity_bytes=card.memory_bytes,
        rent=rent.said if rent else None,
        rows=[_priced(row, rent) for row in rows],
        assumptions=[
            *understood,
            *[said.replace(OF_THE_JOB, OF_ONE_ROW) for said in found.assumptions],
            *question.counted,
            *filter(None, [seen(found.spec) if any(way.part == "training" for way in asked) else ""]),
            *card.assumptions,
            *filter(None, [of_platform(card, kind)]),
            *without_cuda(card),
            *taken_for_granted([way for way in asked if not way.refusal(kind)], serving, training, found.spec, card.ram),
            *([SPEED] if any(row.tokens_per_second for row in rows) else []),
            *([HOURS] if any(row.hours for row in rows) else []),
        ],
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def refuse_unlike(parts: set[str], context: int | None, sequence: int | None, tokens: str | float | None) -> None:
    """Raise `Contradiction` for a length of what is served where all is trained, and for lengths of a training where all is
    served."""
    if parts == {"training"} and context is not None:
        raise Contradiction("is how long served sequences are, and this is trained: say the sequence", "context")
    if parts == {"serving"} and sequence is not None:
        raise Contradiction("is how long sequences are in training, and this is served: say the context", "sequence")
    if parts == {"serving"} and tokens is not None:
        raise Contradiction("are what a training run processes; this is served", "tokens")


def counted(tokens: str | float) -> int:
    """How many tokens a run processes, as people write it. Raises `InvalidValue`."""
    try:
        return parse_count(tokens)
    except ValueError as error:
        raise InvalidValue(str(error), "tokens") from None


def _priced(row: FitRow, rent: Rented | None) -> FitRow:
    """A row with what its run costs."""
    return row if row.hours is None or rent is None else row.model_copy(update={"total": rent.paid(row.hours)})


def _rent(machine: Hardware, card: Capacity, written: str) -> Rented | None:
    """Where an hour costs least of a card that has a name."""
    if card.accelerator is None:
        return None
    from estimator.planner.renting import cheapest_hour  # prices are loaded where there may be one

    return cheapest_hour(machine, card.accelerator.name, written)


def for_model(found: Model, kind: Platform, asked: list[Way]) -> list[Way]:
    """The ways as they are for a model: LoRA leaves out layers on which PEFT puts none; where the checkpoint is quantized and
    served so, that comes first, and no other in the same format. Beside vLLM's there are llama.cpp's where it has the model."""
    asked = [_adaptable(way, found.spec) for way in asked]
    serving = [way for way in asked if way.part == "serving" and not way.refusal(kind)]
    if not LLAMA_CPP.runs(found.spec) and any(not way.gguf for way in serving):
        asked, serving = ([way for way in some if not way.gguf] for some in (asked, serving))
    if found.stored is None:
        return [*_of_file(found, serving), *asked]
    first = {way.gguf: way for way in reversed(serving)}
    shipped = {gguf: way for gguf in (False, True) if (way := _as_published(first.get(gguf), found.stored))}
    same = {(gguf, way.settings["weights"]) for gguf, way in shipped.items()}
    return [*shipped.values(), *(way for way in asked if (way.gguf, way.settings.get("weights")) not in same)]


def _of_file(found: Model, serving: list[Way]) -> list[Way]:
    """llama.cpp's way with the GGUF file that the model was read from, as it is."""
    way = next((way for way in serving if way.gguf), None)
    if way is None or found.checkpoint is None or found.checkpoint.format != "gguf":
        return []
    settings = {name: value for name, value in way.settings.items() if name != "weights"}
    title = ENGINES[way.settings["engine"]].title
    return [way.model_copy(update={"way": f"serve the file, {title}", "job": {**way.job, way.part: settings}})]


def _as_published(way: Way | None, stored: Stored) -> Way | None:
    """A way of serving with the checkpoint's own weights; None where its engine does not load them."""
    engine = engine_of(way) if way else None
    weights = engine.loads(stored.format) if engine else None
    if way is None or weights is None:
        return None
    more = {
        "weights_group": stored.group,
        "unquantized": list(stored.whole),
        "mixed_weights": {name: list(parts) for name, parts in stored.mixed},
    }
    given = {name: value for name, value in more.items() if value and weights == stored.format}
    by = f", {engine.title}" if engine and engine is not VLLM else ""
    return way.changed(weights=weights, **given).model_copy(update={"way": f"serve {weights}{by}, as published"})


def _adaptable(way: Way, spec: ModelSpec) -> Way:
    """A way whose adapter leaves out some layers, or is on those that are listed."""
    adapter = way.settings.get("adapter")
    given = {"exclude": list(spec.without_lora), "targets": list(spec.lora_by_name)}
    given = {name: value for name, value in given.items() if value}
    return way if adapter is None or not given else way.changed(adapter={**adapter, **given})


@uncollected()
def _row(question: Question, way: Way, hardware: Hardware, kind: Platform, card: Capacity) -> FitRow:
    if refused := way.refusal(kind):
        return _unknown(question, way, hardware, card, refused.verdict, refused.why)
    spec = question.found.spec
    engine = engine_of(way)
    served = engine is not None and not engine.reads_gguf and engine.runs(spec)
    if engine is VLLM and (dropped := not_run(spec, None)):
        return _unknown(question, way, hardware, card, "does not run", dropped)
    if not spec.forward_modelled and not served and not isinstance(spec, OtherSpec):
        return _unknown(question, way, hardware, card, "unknown", spec.refusal)
    try:
        found = tried(question, way, hardware)
    except NotModelled as error:
        return _unknown(question, way, hardware, card, "unknown", error.message)
    if found is None:
        return _unknown(question, way, hardware, card, "unknown", "no way to spread it over these GPUs")
    best, answer = found.best, found.best.judged
    alone = unshared(question, way, hardware)
    if alone and answer.verdict.fits is False and hardware.gpus * hardware.nodes > 1:
        needs = f"{alone}; on one GPU alone it takes {gib(answer.memory.total_bytes)}"
        return _unknown(question, way, hardware, card, "unknown", needs)
    memory, verdict = answer.memory, answer.verdict
    limit = offered(memory.capacity_bytes, answer.job)
    change = Change("")
    if verdict.fits is False and (spec.forward_modelled or served):
        change = smallest_change(question, way, hardware, card, answer)
    return FitRow(
        way=way.way,
        spread=best.spread,
        fits=verdict.fits,
        verdict=verdict.verdict,
        total_bytes=memory.total_bytes,
        peak_bytes=memory.peak_bytes,
        peak_phase=memory.peak_phase,
        headroom_bytes=None if limit is None else limit - memory.total_bytes,
        would_fit_with=change.said,
        would_fit_job=_with_model(question, change.job),
        problem="",
        note=_note(found.all, best),
        longest_context=memory.engine.longest_context if memory.engine else _longest(question, way, answer),
        tokens_per_second=_speed(question, answer.job) if verdict.fits and card.accelerator else None,
        hours=_hours(question, answer.job) if verdict.fits and card.accelerator else None,
        job=answer.job.model_dump(mode="json"),
    )


def _speed(question: Question, job: Job) -> float | None:
    from estimator.pipeline.estimation import tokens_per_second  # what knows time is loaded for a card of which it is known

    return tokens_per_second(job, question.allow_files)


def _hours(question: Question, job: Job) -> float | None:
    if job.task != "train" or job.training.tokens is None:
        return None
    from estimator.pipeline.estimation import step_time

    try:
        found = step_time(job, question.allow_files)
    except NotModelled:
        return None
    return found[1].value if found and found[1] else None


def _longest(question: Question, way: Way, answer: Judged) -> int | None:
    """The longest context that llama.cpp holds, as far as the model has positions, in its own steps; None of another engine, or
    without a card. What it takes grows with the context, nearly evenly; an encoder reads it in one pass."""
    spec, capacity = question.found.spec, answer.memory.capacity_bytes
    most, unsaid = spec.longest_sequence, (*WITHOUT_BYTES, *(["ubatch"] if spec.encodes else []))
    if not way.gguf or capacity is None or not most:
        return None
    job = _with_model(question, answer.job.model_dump(mode="json", exclude_defaults=True)) or {}
    serving = {name: value for name, value in job["serving"].items() if name not in unsaid}

    def spare(steps: int) -> int:
        asked = {**serving, "context": min(steps * CELLS, most)}
        return capacity - question.ask({**job, "serving": asked}).memory.total_bytes

    good, bad = 1, -(-most // CELLS)
    left, lacking = spare(good), spare(bad)
    if lacking >= 0 or left < 0:
        return most if lacking >= 0 else 0
    while bad - good > 1:
        at = min(max(good + (bad - good) * left // (left - lacking), good + 1), bad - 1)
        room = spare(at)
        good, left, bad, lacking = (at, room, bad, lacking) if room >= 0 else (good, left, at, room)
    return good * CELLS


def _with_model(question: Question, job: dict[str, Any] | None) -> dict[str, Any] | None:
    """A job of the question's model as a caller sends it, without what defaults fill in."""
    return None if job is None else read_job({"model": question.model, **job}).model_dump(mode="json", exclude_defaults=True)


def _note(every: list[Tried], best: Tried) -> str:
    """Why a simpler spread than the one that was taken was not, where it does not share the model evenly."""
    other = next((one for one in every if one.judged.uneven), None)
    if other is None or (other is best and best.judged.verdict.fits):
        return ""
    return f"{other.spread} needs {gib(other.judged.memory.total_bytes)}: {other.judged.uneven}"


def _unknown(question: Question, way: Way, hardware: Hardware, card: Capacity, verdict: Any, problem: str) -> FitRow:
    """A row without bytes: not known, unless what its weights alone take says no."""
    fits, least = None, question.least_bytes(way, hardware.gpus * hardware.nodes)
    if verdict == "unknown" and card.memory_bytes is not None and least > card.memory_bytes:
        what = "weights" if "adapter" in way.settings or way.part == "serving" else "weights and AdamW's states"
        fits, verdict = False, "does not fit"
        shared = "" if hardware.gpus * hardware.nodes == 1 else " on each GPU, however they share them"
        problem = f"its {what} alone are {gib(least)}{shared}; what else it takes is not known: {problem}"
    return _without_bytes(way.way, IN_RAM if card.ram else "", fits, verdict, problem)


def _by_mlx(found: Model, hardware: Hardware, card: Capacity, context: int, concurrency: int) -> FitRow:
    """A checkpoint that MLX alone reads, served by it: not known, unless its weights and its cache alone are too many."""
    from estimator.quantization.mlx import mlx_bytes, mlx_cache_bytes  # loaded where there is such a checkpoint

    way, unknown = f"serve {found.mlx}, MLX", "what else MLX takes is not modelled"
    if isinstance(found.spec, OtherSpec):
        return _without_bytes(way, "", None, "unknown", unknown)
    each = mlx_bytes(found.spec, found.mlx) // (hardware.gpus * hardware.nodes)
    if card.memory_bytes is not None and each > card.memory_bytes:
        return _without_bytes(way, "", False, "does not fit", f"its weights alone are {gib(each)}; {unknown}")
    if (kept := mlx_cache_bytes(found.spec, context)) is None:
        return _without_bytes(way, "", None, "unknown", f"its weights are {gib(each)}; {unknown}")
    kept *= concurrency
    both = f"its weights are {gib(each)}, and a cache of {concurrency * context} tokens {gib(kept)} in 16 bits"
    if card.memory_bytes is not None and each + kept > card.memory_bytes:
        return _without_bytes(way, "", False, "does not fit", f"{both}: together more than there is; {unknown}")
    return _without_bytes(way, "", None, "unknown", f"{both}; {unknown}")


def _without_bytes(way: str, spread: str, fits: bool | None, verdict: Any, problem: str) -> FitRow:
    nothing = dict.fromkeys(("total_bytes", "peak_bytes", "headroom_bytes", "job"))
    return FitRow(
        way=way, spread=spread, fits=fits, verdict=verdict, peak_phase="", would_fit_with="", problem=problem, **nothing
    )
