"""What the page shows, made on the server: the question in a form, then the verdict, the bytes, the assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup

from estimator.cli.report import shape_text
from estimator.contract.answer import DEFAULT, Answer, TimePart
from estimator.contract.errors import InvalidJob, InvalidValue, NotModelled, UnknownName, UnsupportedInterpreter, WillItFitError
from estimator.contract.job import Job, Serving, Training
from estimator.contract.job.optimizer import Implementation
from estimator.contract.units import gib
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.facts import catalogue
from estimator.facts.spelling import shown
from estimator.hardware.accelerator import FOLDER
from estimator.pipeline.estimation import estimate
from estimator.planner.answers import Fit
from estimator.planner.headline import fit
from estimator.specs.published import folders
from estimator.tape.tape import COMPONENTS

from .query import job_fields, job_mapping, job_query

Items = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Field:
    """One choice of the form: a select if it has options ("" leaves it to the default), else a number."""

    name: str
    label: str
    options: tuple[str, ...] = ()
    placeholder: str = ""

    @property
    def default(self) -> str:
        """The option that a job has by itself."""
        return DEFAULTS.get(self.name, "")


DEFAULTS = job_fields(Job(model="").model_dump(mode="json"))


def _choices(part: Any, name: str) -> tuple[str, ...]:
    return tuple(str(v) for v in part.model_json_schema()["properties"][name].get("enum", ()))


TRAINING_FIELDS = (
    Field("training.precision", "Precision", ("bf16-mixed", "bf16-true", "32-true", "16-true")),
    Field("training.quantization", "Frozen weights", ("", "nf4", "nf4-double", "fp4", "int8")),
    Field("training.adapter.rank", "LoRA rank", placeholder="none"),
    Field("training.optimizer", "Optimizer", _choices(Training, "optimizer")),
    Field("training.optimizer_implementation", "Implementation", ("", *get_args(Implementation))),
    Field("training.micro_batch_size", "Sequences per GPU", placeholder="1"),
    Field("training.sequence_length", "Tokens per sequence", placeholder="2048"),
    Field("training.gradient_accumulation_steps", "Accumulation steps", placeholder="1"),
    Field("training.activation_checkpointing", "Checkpointing", ("full", "none", "sqrt")),
    Field("training.attention", "Attention", _choices(Training, "attention")),
    Field("parallelism.strategy", "Across GPUs", ("", "ddp", "zero1", "zero2", "zero3", "fsdp2")),
    Field("training.tokens", "Tokens in all", placeholder="for the cost: 1e9"),
)
SERVING_FIELDS = (
    Field("serving.engine", "Engine", _choices(Serving, "engine")),
    Field("serving.weights", "Weights", ("bf16", "fp16", "int8", "nf4", "nf4-double", "fp4", "q8_0", "q4_k_m")),
    Field("serving.context", "Tokens of context", placeholder="4096"),
    Field("serving.prompt_length", "Tokens of a prompt", placeholder="half of the context"),
    Field("serving.concurrency", "Sequences at a time", placeholder="1"),
    Field("parallelism.tensor", "Tensor parallel", placeholder="1"),
    Field("serving.hours", "Hours", placeholder="for the cost: 720"),
)
TONES = {"fits": "good", "tight": "some", "does not fit": "bad", "unknown": "", "does not run": ""}
"""The look of each verdict."""
ON_PAGE = {"model", "on", "task", *(field.name for field in TRAINING_FIELDS + SERVING_FIELDS)}


@cache
def _environment() -> jinja2.Environment:
    folder = Path(__file__).parent / "templates"
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined)
    environment.globals |= {
        "gib": gib,
        "shape_text": shape_text,
        "tones": TONES,
        "software": SOFTWARE_VERSION,
        "data": DATA_VERSION,
    }
    return environment


def rendered_template(name: str, **context: Any) -> str:
    """A template of ours as HTML."""
    return _environment().get_template(name).render(context)


def render(items: Items) -> tuple[int, str]:
    """The page for a query: its HTTP status and its HTML."""
    asked = {name: value for name, value in items if value.strip()}
    status, error, headline, answer = 200, "", None, None
    try:
        if "model" in asked and "task" in asked:
            answer = estimate(job_mapping(items), allow_files=False)
        elif "model" in asked and "on" in asked:
            headline = fit(asked["model"], asked["on"], False, **_numbers(asked))
        elif asked:
            raise InvalidJob("give a model and the hardware", "the form")
    except WillItFitError as found:
        status, error = found.status, str(found)
    context = {
        "asked": asked,
        "error": error,
        "fit": headline,
        "answer": answer,
        "rows": _rows(headline, asked) if headline else [],
        "notes": [f"{row.way}: {row.note}" for row in headline.rows if row.note] if headline else [],
        "bar": stacked_bar(answer) if answer else "",
        "components": _components(answer) if answer else [],
        "time_bar": time_bar(answer) if answer else "",
        "time_parts": _time_parts(answer) if answer else [],
        "assumptions": [a for a in answer.assumptions if not a.startswith(DEFAULT)] if answer else [],
        "defaults": [a.removeprefix(DEFAULT) for a in answer.assumptions if a.startswith(DEFAULT)] if answer else [],
        "api": "/v1/estimate?" + urlencode(list(items)) if answer else "/v1/fit?" + urlencode(list(items)),
        "back": "/?" + urlencode([(name, asked.get(name, "")) for name in ("model", "on")]),
        "forms": (("train", "One training job in full", TRAINING_FIELDS), ("serve", "One serving job in full", SERVING_FIELDS)),
        "carried": {name: value for name, value in asked.items() if name not in ON_PAGE},
        "models": catalogue.names(*folders()),
        "gpus": catalogue.names(FOLDER),
    }
    return status, _environment().get_template("page.html").render(context)


def _numbers(asked: dict[str, str]) -> dict[str, int]:
    """Settings of the headline question that are whole numbers."""
    found = {}
    for name in ("context", "concurrency", "sequence", "batch"):
        text = asked.get(name)
        if text is not None and not (text.isdecimal() and len(text) <= 8):
            raise InvalidValue(f"{shown(text)} is no whole number", name)
        if text is not None:
            found[name] = int(text)
    return found


def render_problems() -> str:
    """The page that explains the slugs of errors."""
    kinds = (InvalidJob, NotModelled, UnknownName, UnsupportedInterpreter)
    codes = {kind: [(one.code, one.__doc__) for one in kind.__subclasses__()] for kind in kinds}
    said = [(kind.slug, kind.status, kind.exit_code, kind.__doc__, codes[kind]) for kind in kinds]
    return _environment().get_template("problems.html").render(kinds=said)


def _rows(headline: Fit, asked: dict[str, str]) -> list[dict[str, Any]]:
    """The table's rows, each with the address of its job in full and a bar of its bytes."""
    largest = max((row.total_bytes or 0) for row in headline.rows)
    scale = max(largest, headline.capacity_bytes or 0) or 1
    rows = []
    for row in headline.rows:
        query = {"model": asked["model"], "on": asked["on"]}
        if row.job:
            query |= {k: v for k, v in job_query(row.job).items() if k != "model" and not k.startswith("hardware.")}
            if row.job["task"] == "serve":
                query["on"] = _used(row.job["hardware"])
        share = 100 * (row.total_bytes or 0) / scale
        rows.append({"row": row, "href": "/?" + urlencode(query) if row.job else "", "share": share})
    return rows


def _used(hardware: dict[str, Any]) -> str:
    return f"{hardware['gpus']}x {hardware['gpu'] or hardware['memory']}"


def _components(answer: Answer) -> list[tuple[str, int]]:
    memory = answer.memory
    found = [(name, memory.at_peak[name]) for name in COMPONENTS if memory.at_peak.get(name)]
    return [*found, *memory.overhead.items()]


def _time_parts(answer: Answer) -> list[tuple[str, TimePart]]:
    """What a step's time goes to, each with the class of a colour; nothing where it is one thing."""
    parts = [part for part in answer.time.parts if part.share >= 0.005] if answer.time else []
    return list(zip(COMPONENTS, parts, strict=False)) if len(parts) > 1 else []


def time_bar(answer: Answer) -> Markup:
    """Where the time of a step goes, as inline SVG."""
    x, shapes = 0.0, []
    for colour, part in _time_parts(answer):
        title = f"<title>{escape(part.name)}: {part.share:.0%}</title>"
        shapes.append(f'<rect class="c-{colour}" x="{x:.2f}" y="8" width="{1000 * part.share:.2f}" height="44">{title}</rect>')
        x += 1000 * part.share
    frame = 'class="bar" viewBox="0 0 1000 60" preserveAspectRatio="none" role="img" aria-label="where the time of a step goes"'
    return Markup(f"<svg {frame}>{''.join(shapes)}</svg>") if shapes else Markup("")


def stacked_bar(answer: Answer) -> Markup:
    """Where the bytes are at the peak, as inline SVG; a line marks what the GPU offers."""
    parts, capacity = _components(answer), answer.memory.capacity_bytes
    total = sum(size for _, size in parts)
    scale = 1000 / (max(total, capacity or 0) * 1.02 or 1)
    x, shapes = 0.0, []
    for name, size in parts:
        width = size * scale
        title = f"<title>{escape(name.replace('_', ' '))}: {gib(size)}</title>"
        shapes.append(f'<rect class="c-{escape(name)}" x="{x:.2f}" y="8" width="{width:.2f}" height="44">{title}</rect>')
        x += width
    if capacity:
        at, title = f"{capacity * scale:.2f}", f"<title>capacity {gib(capacity)}</title>"
        shapes.append(f'<line class="limit" x1="{at}" x2="{at}" y1="0" y2="60">{title}</line>')
    label = f"{gib(total)} at the peak" + (f" of {gib(capacity)}" if capacity else "")
    frame = f'class="bar" viewBox="0 0 1000 60" preserveAspectRatio="none" role="img" aria-label="{label}"'
    return Markup(f"<svg {frame}>{''.join(shapes)}</svg>")
