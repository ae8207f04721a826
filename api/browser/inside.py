"""What runs inside WebAssembly: `prepare` once, when the bundle is made; `ask` for each question, in the visitor's browser.

All that `prepare` leaves in memory is in the bundle's snapshot, so no visitor's browser imports a module or reads a fact.
What is asked and answered is what the service asks and answers (`api/answers.py`), with links that stay on one page.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable
from datetime import date
from functools import lru_cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any
from urllib.parse import urlencode

from estimator.contract.errors import WillItFitError

from .. import page
from ..answers import HTML, JSON, QUESTIONS, Rendered, answer
from ..pages.asked import asked
from ..pages.forms import EXAMPLES
from ..problems import MEDIA_TYPE, document

Items = list[tuple[str, str]]
SERVICE = page.__name__.rpartition(".")[0]
LEFT_OUT = (
    "estimator.verify",  # torch
    "estimator.sweeps",  # numpy
    "estimator.testing.plugin",  # pytest
    "estimator.cli.__main__",
    "pydantic.v1",
    "pydantic.mypy",
    "pydantic.deprecated",
)
"""Modules that no question here needs, and what they want."""
OF_THE_SERVICE = ("answers", "page", "pages", "problems", "query", "settings", "templates")
"""Parts of the service that are here as well."""
DATA = {
    "v1/fit": ("fits", "fit"),
    "v1/estimate": ("job", "answer"),
    "v1/which": ("which", "which"),
    "v1/fitting": ("models", "fitting"),
    "v1/timeline": ("timeline", "timeline"),
    "v1/what-if": ("what-if", "what_if"),
    "v1/limit": ("limit", "limit"),
    "v1/plan": ("plan", "plan"),
    "v1/replicas": ("replicas", "replicas"),
    "v1/budget": ("cost", "budget"),
}
"""A page's answer in JSON, by the address at which the service has it: the page, and what its answer is called there."""
REMEMBERED = 64
"""Answers that are remembered."""
TEXT = ("job", "body", "text")
"""Arguments that the questions take as bytes."""


def link(view: str, items: Iterable[tuple[str, str]] = (), then: str = "") -> str:
    """The address of a page: all are one file, and `view` says which is meant; of a file beside it, itself."""
    if view.startswith("static/"):
        return f"./{view}"
    query = urlencode([(name, value) for name, value in [("view", view), *items] if value])
    return f"./{f'?{query}' if query else ''}{f'#{then}' if then else ''}"


def prepare() -> None:
    """Import all that a question may need, compile templates, read all facts, answer what the first page offers."""
    for name in ("estimator", SERVICE, "jinja2", "pydantic"):
        for module in walk_packages(import_module(name).__path__, f"{name}."):
            if _here(module.name):
                import_module(module.name)
    environment = page.environment()
    environment.globals |= {"link": link, "script": "static/app.mjs"}
    environment.auto_reload = False
    for template in environment.list_templates():
        environment.get_template(template)
    import_module(f"{SERVICE}.warm")
    for view, _, fields in EXAMPLES:
        if not view:  # the others simulate hundreds of jobs
            ask("page", json.dumps({"items": list(fields.items()), "view": view}))
    gc.collect()
    gc.freeze()


def _here(module: str) -> bool:
    """Whether a module is part of the bundle's memory."""
    if module.startswith(f"{SERVICE}."):
        return module.removeprefix(f"{SERVICE}.").partition(".")[0] in OF_THE_SERVICE
    return not module.startswith(LEFT_OUT)


def ask(kind: str, arguments: str) -> list[Any]:
    """The answer to a question of a kind, with its arguments as a JSON object: status, media type, body."""
    return list(_asked(kind, arguments, date.today()))


@lru_cache(maxsize=REMEMBERED)
def _asked(kind: str, arguments: str, _: date) -> Rendered:
    """An answer, which is remembered for the day: prices grow old."""
    given = json.loads(arguments)
    if kind == "page":
        return _page([(name, value) for name, value in given["items"]], given["view"])
    if kind not in QUESTIONS:
        return _problem(404, f"no question is called {kind}")
    return answer(kind, {name: value.encode() if name in TEXT else value for name, value in given.items()})


def _page(items: Items, view: str) -> Rendered:
    if view in DATA:
        name, key = DATA[view]
        return _caught(lambda: Rendered(200, JSON, page.PAGES[name][0](asked(items))[key].to_json().encode()))
    if view == "words":
        return Rendered(200, HTML, page.render_words().encode())
    if view == "docs":
        return Rendered(200, HTML, page.render_packaged().encode())
    if view and view not in page.PAGES:
        return _problem(404, f"there is no page {view}")
    return answer("page", {"items": items, "view": view})


def _caught(make: Callable[[], Rendered]) -> Rendered:
    try:
        return make()
    except WillItFitError as error:
        return Rendered(
            error.status, MEDIA_TYPE, document(error.status, error.slug, str(error), error.code, error.where or None).encode()
        )


def _problem(status: int, said: str) -> Rendered:
    return Rendered(status, MEDIA_TYPE, document(status, "", said).encode())
