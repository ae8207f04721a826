"""A badge: an answer as a small picture for a README or a model's card, and as what shields.io makes a badge of.

The picture loads nothing and runs nothing, so that it is shown wherever pictures are. Its text is as wide as the letters are said
to be below, whatever font the reader has: `textLength` sees to that.
"""

from __future__ import annotations

from html import escape

from pydantic import BaseModel, ConfigDict, Field

from estimator.contract.errors import WillItFitError
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION

from .asked import Asked
from .summary import Summary, summary

COLOURS = {"fits": "#17693a", "tight": "#7a4f00", "does not fit": "#a3261e"}
"""White on each has a contrast of 6 to 1 or more."""
OTHERWISE, LABEL = "#5c5f64", "#33373d"
HEIGHT, MARGIN = 20, 7
MOST_LABEL = 60
LASTS = 86400
"""Seconds for which shields.io keeps a badge."""
NARROW, WIDE = frozenset("iljtfrI.,:;'|!()[] ·"), frozenset("mwMWQ%@—")


class Badge(BaseModel):
    """A badge as shields.io's endpoint takes it (https://shields.io/badges/endpoint-badge)."""

    model_config = ConfigDict(populate_by_name=True)

    schema_version: int = Field(1, alias="schemaVersion")
    label: str
    message: str
    color: str
    is_error: bool = Field(False, alias="isError")
    cache_seconds: int = Field(LASTS, alias="cacheSeconds")


def badge(asked: Asked, form: str) -> str:
    """The badge of a question: `svg`, or `json`. A question that cannot be read is a badge that says so: a picture that is
    missing says nothing."""
    try:
        found = summary(asked)
    except WillItFitError as error:
        return drawn(_label(asked, "will it fit?"), error.slug.replace("-", " "), OTHERWISE, str(error), form, True)
    colour = COLOURS.get(found.verdict, OTHERWISE)
    return drawn(_label(asked, _short(found)), found.said, colour, f"{found.question}: {found.said}. {found.reason}", form)


def drawn(label: str, message: str, colour: str, title: str, form: str, error: bool = False) -> str:
    """A badge of two texts, with what it says to who cannot see it, and to who points at it."""
    if form == "json":
        return Badge(label=label, message=message, color=colour.lstrip("#"), is_error=error).model_dump_json(by_alias=True)
    left, right = width(label) + 2 * MARGIN, width(message) + 2 * MARGIN
    said = f"{_printable(title)}\nwillitfit {SOFTWARE_VERSION}, data of {DATA_VERSION}"
    texts = (
        f'<text x="{x}" y="14" textLength="{width(text)}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
        for x, text in ((MARGIN, label), (left + MARGIN, message))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{HEIGHT}" role="img" '
        f'aria-label="{escape(label)}: {escape(message)}"><title>{escape(said)}</title>'
        f'<rect width="{left + right}" height="{HEIGHT}" rx="3" fill="{LABEL}"/>'
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v{HEIGHT - 6}a3 3 0 0 1-3 3h-{right - 3}z" fill="{colour}"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{"".join(texts)}</g></svg>'
    )


def width(text: str) -> int:
    """How wide a text is drawn, in pixels at 11 to the em: about what Verdana takes."""
    return round(sum(4.4 if letter in NARROW else 10.2 if letter in WIDE else 7.0 for letter in text))


def _short(found: Summary) -> str:
    return found.question.removeprefix("Use ")


def _label(asked: Asked, usual: str) -> str:
    text = _printable(asked.get("label") or usual)
    return text if len(text) <= MOST_LABEL else f"{text[: MOST_LABEL - 1]}…"


def _printable(text: str) -> str:
    """A text without what XML has no place for."""
    return "".join(letter for letter in text if letter.isprintable())
