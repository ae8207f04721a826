"""What the pages show, made on the server: the question in a form, then the answer. A page's address holds its whole question."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape

from estimator.cli.report import shape_text
from estimator.contract.errors import InvalidJob, NotModelled, UnknownModel, UnknownName, UnsupportedInterpreter, WillItFitError
from estimator.contract.job import Job
from estimator.contract.units import gib
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange import READ
from estimator.facts import catalogue
from estimator.hardware.accelerator import FOLDER
from estimator.specs.published import folders

from .pages import of_files, of_job, of_model, of_search
from .pages.asked import Asked, Items, asked
from .pages.forms import EXAMPLES, FIELDS, HEADLINE_FIELDS, METHODS, TABS, TASKS, VIEWS
from .pages.in_words import in_words
from .pages.pictures import mini_bar
from .pages.spelled import meant
from .pages.summary import summary
from .pages.words import meaning, words
from .settings import settings

TONES = {
    "fits": "good",
    "tight": "some",
    "does not fit": "bad",
    "unknown": "",
    "does not run": "",
    "refused": "",
    "not modelled": "",
}
"""The look of each verdict."""
Page = Callable[[Asked], dict[str, Any]]
PAGES: dict[str, tuple[Page, str]] = {
    "fits": (of_model.headline, "headline.html"),
    "job": (of_job.job_page, "job.html"),
    "which": (of_model.which_card, "which.html"),
    "models": (of_model.which_model, "models.html"),
    "file": (of_files.file, "file.html"),
    "timeline": (of_job.timeline, "timeline.html"),
    "what-if": (of_job.other_values, "what_if.html"),
    "limit": (of_job.how_far, "limit.html"),
    "compare": (of_job.compare, "compare.html"),
    "cost": (of_job.cost, "cost.html"),
    "plan": (of_search.best_ways, "plan.html"),
    "replicas": (of_search.copies, "replicas.html"),
    "explain": (of_files.measurement, "explain.html"),
    "along": (of_files.along, "along.html"),
}
"""What makes each page's answer, and its template."""
ASKED_AGAIN = ("what-if", "limit", "compare", "cost", "explain", "along")
"""Pages of a job with a form of their own, which is shown with what is wrong with it."""
OF_JOBS = ("", "timeline", "what-if", "limit", "compare", "along")
"""Pages whose fields are a job's, written as people do."""
TITLES = dict(VIEWS) | {"words": "Words", "docs": "For programs", "problems": "What can go wrong"}


CODE = re.compile("`([^`]+)`")
"""What stands as code in a text."""


@cache
def environment() -> jinja2.Environment:
    """What the templates are rendered with."""
    folder = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "gib": gib,
        "shape_text": shape_text,
        "tones": TONES,
        "software": SOFTWARE_VERSION,
        "data": DATA_VERSION,
        "link": link,
        "script": "static/page.js",
        "mini_bar": mini_bar,
        "seconds": seconds,
        "all_words": words(),
        "word": words().__getitem__,
        "meaning": meaning,
        "views": VIEWS,
        "tabs": TABS,
    }
    environment.filters["code"] = lambda text: Markup(CODE.sub(r"<code>\1</code>", str(escape(text))))
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    return environment


def seconds(value: float) -> str:
    """A time as people read it: below a second in thousandths."""
    return f"{value:,.3g} s" if abs(value) >= 1 else f"{1000 * value:.3g} ms"


def link(view: str, items: Iterable[tuple[str, str]] = (), then: str = "") -> str:
    """The address of a page or a route of this service, with fields of a question; `then`: a place on it."""
    query = urlencode([(name, value) for name, value in items if value])
    return f"{settings().root_path}/{view}{f'?{query}' if query else ''}{f'#{then}' if then else ''}"


def rendered_template(name: str, /, **context: Any) -> str:
    """A template of ours as HTML."""
    return environment().get_template(name).render(context)


def render(items: Items, view: str = "") -> tuple[int, str]:
    """A page for the fields of its address, or of the form that was sent: its HTTP status and its HTML."""
    given, misread = asked(items), None
    try:
        view, given = in_words(view, given)
    except InvalidJob as found:
        misread = found
    status, error, where, unknown = 200, "", "", ""
    name = view or ("job" if given.get("model") and given.get("task") else "fits")
    answer: dict[str, Any] = {}
    if given.items:
        try:
            if misread:
                raise misread
            if view in OF_JOBS:
                given = meant(given)
                name = view or ("job" if given.get("model") and given.get("task") else "fits")
            answer = PAGES[name][0](given) | ({} if view else {"embeddable": True})
        except WillItFitError as found:
            status, error, where = found.status, str(found), found.where
            unknown = "model" if isinstance(found, UnknownModel) else "name" if isinstance(found, UnknownName) else ""
        if error and name in ASKED_AGAIN:
            answer = _without_answer(name, given)
    said = _common(view, given) | {"error": error, "where": where, "unknown": unknown}
    return status, rendered_template(PAGES[name][1], **said, **answer)


def _without_answer(name: str, given: Asked) -> dict[str, Any]:
    """A page of a job whose own fields are wrong, as it is without them; nothing where it is the job that is wrong."""
    job = [(field, value) for field, value in given.without() if field.partition(".")[0] in ("on", *Job.model_fields)]
    try:
        return PAGES[name][0](Asked(job)) | {"again": True}
    except WillItFitError:
        return {}


def render_embed(items: Items) -> tuple[int, str]:
    """An answer in few words for another page's frame: its HTTP status and its HTML."""
    given = asked(items)
    try:
        found, status, error = summary(given), 200, ""
    except WillItFitError as refused:
        found, status, error = None, refused.status, str(refused)
    return status, rendered_template("embed.html", found=found, error=error, asked=given)


def render_refusal(view: str, items: Items, status: int, said: str) -> str:
    """The page that says that a question was not worked out."""
    return rendered_template("refusal.html", **_common(view, asked(items)) | {"error": said}, status=status)


def render_words() -> str:
    """The page that explains the words of the others."""
    return rendered_template("words.html", **_common("words", asked([])))


def render_packaged() -> str:
    """The page that says how programs use the estimator where there is no service: the npm package beside the page."""
    return rendered_template("packaged.html", **_common("docs", asked([])))


def render_docs(**description: Any) -> str:
    """The page that says how programs ask the service."""
    return rendered_template("docs.html", **_common("docs", asked([])), **description)


def render_problems() -> str:
    """The page that explains the slugs of errors."""
    kinds = (InvalidJob, NotModelled, UnknownName, UnsupportedInterpreter)
    codes = {kind: [(one.code, one.__doc__) for one in kind.__subclasses__()] for kind in kinds}
    said = [(kind.slug, kind.status, kind.exit_code, kind.__doc__, codes[kind]) for kind in kinds]
    return rendered_template("problems.html", **_common("problems", asked([])), kinds=said)


def _common(view: str, given: Asked) -> dict[str, Any]:
    """What every page has: what was asked, and what may be."""
    return {
        "view": view,
        "error": "",
        "where": "",
        "unknown": "",
        "address": settings().address,
        "asked": given,
        "heading": TITLES.get(view, "Will it fit?"),
        "examples": EXAMPLES,
        "job_fields": FIELDS,
        "headline_fields": HEADLINE_FIELDS,
        "tasks": {name: text.format("it") for name, text in TASKS.items()},
        "methods": METHODS,
        "whose_files": READ,
        "models": catalogue.names(*folders()),
        "gpus": catalogue.names(FOLDER),
    }
