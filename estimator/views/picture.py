"""A what-if as a picture: what one GPU needs, over the number that was changed, or as bars where none was; SVG, drawn here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise
from math import ceil, floor, log2, log10
from typing import NamedTuple

from estimator.contract.units import GIB
from estimator.planner.what_if_answer import WhatIf, WhatIfRow, shown

COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#777777", "#994400")
"""Of lines, in order; Paul Tol's bright scheme, which colour-blind readers can tell apart, and one more."""
DASHES = ("", "7 3", "2 3")
"""Of lines, when their colours are used up."""
VERDICTS = {"fits": "#228833", "tight": "#ccbb44", "does not fit": "#cc3311", "unknown": "#777777"}
"""Colours of bars."""
LETTER = 6.6
"""Width of a letter, on average, in the units of a font of 12."""
WIDTH, HEIGHT, LEFT, TOP, FOOT = 560, 340, 64, 66, 66
"""Of the drawing's area, and what is around it: at the left the axis, above the title, below the axis and its name."""
MOST_LINES = 24
MOST_BARS = 60


Scale = Callable[[float], float]
"""Where a value lies in the drawing."""


class Line(NamedTuple):
    """Rows that differ in one number only."""

    label: str
    rows: list[WhatIfRow]


def picture(found: WhatIf) -> str:
    """SVG of what one GPU needs, in GiB: lines where a number was changed, the one with most values along the axis; else bars."""
    numeric = [name for name in found.fields if len(_numbers(found, name)) > 1]
    if not numeric or not any(row.total_bytes for row in found.rows):
        return _bars(found)
    along = max(numeric, key=lambda name: len(_numbers(found, name)))
    return _lines(found, along)


def _numbers(found: WhatIf, name: str) -> list[float]:
    """The values of a field in rising order, if all are numbers."""
    values = [row.values[name] for row in found.rows]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return []
    return sorted(set(values))


def _lines(found: WhatIf, along: str) -> str:
    values = _numbers(found, along)
    gaps = [after - before for before, after in pairwise(values)]
    logarithmic = values[0] > 0 and values[-1] / values[0] >= 8 and max(gaps) > 2 * min(gaps)
    low, high = (log2(values[0]), log2(values[-1])) if logarithmic else (values[0], values[-1])

    def x(value: float) -> float:
        return LEFT + 14 + ((log2(value) if logarithmic else value) - low) / (high - low) * (WIDTH - 28)

    lines = list(_series(found, along))
    rooms = {row.offered_bytes for row in found.rows if row.offered_bytes is not None}
    top = max([row.total_bytes or 0 for row in found.rows] + ([max(rooms)] if len(rooms) == 1 else [])) / GIB
    step = _step(top)
    most = ceil(top / step) * step or 1.0

    def y(gib: float) -> float:
        return TOP + HEIGHT * (1 - gib / most)

    parts = [*_levels(most, step, y), *_below(along, values, x)]
    if len(rooms) == 1:
        parts += _room(rooms.pop() / GIB, y)
    for at, line in enumerate(lines[:MOST_LINES]):
        parts += _drawn(line, at, along, x, y)
    legend = list(_legend(lines))
    side = 24 + max((len(text) for _, text in legend), default=0) * LETTER + 28
    for at, (mark, text) in enumerate(legend):
        parts.append(_placed(mark, LEFT + WIDTH + 24, TOP + 10 + 19 * at))
        parts.append(_text(LEFT + WIDTH + 52, TOP + 14 + 19 * at, text))
    height = max(TOP + HEIGHT + FOOT, TOP + 30 + 19 * len(legend))
    return _svg(LEFT + WIDTH + side + 14, height, _title(found), parts)


def _series(found: WhatIf, along: str) -> Iterator[Line]:
    """Rows by the values of all other fields."""
    others = [name for name in found.fields if name != along]
    groups: dict[str, list[WhatIfRow]] = {}
    for row in found.rows:
        groups.setdefault(_label(row, others), []).append(row)
    for label, rows in groups.items():
        yield Line(label, sorted(rows, key=lambda row: row.values[along]))


def _label(row: WhatIfRow, fields: Sequence[str]) -> str:
    """Values of fields, with the fields' names where the values do not speak for themselves."""
    named = [(name.rpartition(".")[2].replace("_", " "), row.values[name]) for name in fields]
    return ", ".join(_worded(value) or f"{name} {shown(value) or 'none'}" for name, value in named)


def _worded(value: object) -> str:
    """Text, and settings of one word and a value, which speak for themselves; empty for numbers."""
    if isinstance(value, dict):
        return " ".join(f"{name} {shown(each)}" for name, each in value.items())
    return value if isinstance(value, str) else ""


def _levels(most: float, step: float, y: Scale) -> Iterator[str]:
    for count in range(round(most / step) + 1):
        at = y(count * step)
        yield f'<path d="M{LEFT} {at:.1f}H{LEFT + WIDTH}" stroke="{"#888" if count == 0 else "#e4e4e4"}"/>'
        yield _text(LEFT - 8, at + 4, f"{count * step:g}", "end")
    yield _text(LEFT - 8, TOP - 14, "GiB per GPU", "start", -LEFT + 18)


def _below(along: str, values: list[float], x: Scale) -> Iterator[str]:
    """The axis of the number: as many of its values as have room."""
    last = -1e9
    for value in values:
        text = _short(value)
        at, half = x(value), len(text) * LETTER / 2
        if at - half < last + 8:
            continue
        last = at + half
        yield f'<path d="M{at:.1f} {TOP + HEIGHT}v5" stroke="#888"/>'
        yield _text(at, TOP + HEIGHT + 20, text, "middle")
    yield _text(LEFT + WIDTH / 2, TOP + HEIGHT + 44, along, "middle")


def _room(gib: float, y: Scale) -> Iterator[str]:
    at = y(gib)
    yield f'<path d="M{LEFT} {at:.1f}H{LEFT + WIDTH}" stroke="#cc3311" stroke-dasharray="5 4"/>'
    below = at - TOP < 18
    yield _text(LEFT + 8, at + (15 if below else -6), f"{gib:.1f} GiB offered", colour="#cc3311")


def _drawn(line: Line, at: int, along: str, x: Scale, y: Scale) -> Iterator[str]:
    """A line through what is known, a disc where it fits, a ring where it does not; a cross at the bottom without an answer."""
    colour, dash = _style(at)
    known = [(x(row.values[along]), y(row.total_bytes / GIB), row) for row in line.rows if row.total_bytes is not None]
    if len(known) > 1:
        path = "L".join(f"{px:.1f} {py:.1f}" for px, py, _ in known)
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
    for px, py, row in known:
        yield _disc(px, py, "white" if row.fits is False else colour, colour)
    for row in line.rows:
        if row.total_bytes is None:
            yield _cross(x(row.values[along]), TOP + HEIGHT - 6 - 3 * at, colour)


def _style(at: int) -> tuple[str, str]:
    dash = DASHES[at // len(COLOURS) % len(DASHES)]
    return COLOURS[at % len(COLOURS)], f' stroke-dasharray="{dash}"' if dash else ""


def _legend(lines: list[Line]) -> Iterator[tuple[str, str]]:
    """Marks around the point 0, 0, and what they mean."""
    rows = [row for line in lines for row in line.rows]
    for at, line in enumerate(lines[:MOST_LINES]):
        if line.label:
            colour, dash = _style(at)
            yield f'<path d="M-2 0h22" stroke="{colour}" stroke-width="2"{dash}/>', line.label
    if len(lines) > MOST_LINES:
        yield "", f"and {len(lines) - MOST_LINES} more"
    if any(row.fits for row in rows):
        yield _disc(9, 0, "#555", "#555"), "fits"
    if any(row.fits is False for row in rows):
        yield _disc(9, 0, "white", "#555"), "does not fit"
    if any(row.total_bytes is None for row in rows):
        yield _cross(9, 0, "#555"), "refused, or not modelled"


def _bars(found: WhatIf) -> str:
    """A bar for each row, with a tick where its GPU ends."""
    rows = found.rows[:MOST_BARS]
    labels = [_label(row, found.fields) for row in rows]
    labels = [label if len(label) <= 60 else f"{label[:59]}…" for label in labels]
    left = 24 + max((len(label) for label in labels), default=0) * LETTER
    top = max([max(row.total_bytes or 0, row.offered_bytes or 0) for row in rows] or [0]) / GIB or 1.0
    scale = (WIDTH - 150) / top
    parts: list[str] = []
    for at, (row, label) in enumerate(zip(rows, labels, strict=True)):
        y = TOP + 26 * at
        parts.append(_text(left - 10, y + 14, label, "end"))
        if row.total_bytes is None:
            reason = row.reason if len(row.reason) <= 78 else f"{row.reason[:77]}…"
            parts.append(_text(left + 4, y + 14, f"{row.verdict}: {reason}", colour="#777"))
            continue
        size = row.total_bytes / GIB * scale
        parts.append(f'<rect x="{left:.1f}" y="{y}" width="{size:.1f}" height="18" fill="{VERDICTS[row.verdict]}"/>')
        end = size
        if row.offered_bytes is not None:
            room = row.offered_bytes / GIB * scale
            parts.append(f'<path d="M{left + room:.1f} {y - 3}v24" stroke="#222" stroke-width="2"/>')
            end = max(size, room)
        parts.append(_text(left + end + 8, y + 14, f"{row.total_bytes / GIB:.1f} GiB: {row.verdict}"))
    y = TOP + 26 * len(rows) + 18
    if any(row.offered_bytes is not None and row.total_bytes is not None for row in rows):
        parts.append(f'<path d="M{left + 2:.1f} {y - 12}v16" stroke="#222" stroke-width="2"/>')
        parts.append(_text(left + 10, y, "what one GPU offers"))
    more = len(found.rows) - len(rows)
    if more:
        parts.append(_text(left + 10, y + 20, f"and {more} more rows"))
    refused = any(row.total_bytes is None for row in rows)
    width = left + (max(WIDTH, 100 * LETTER) if refused else WIDTH) + 20
    return _svg(width, y + (36 if more else 20), _title(found), parts)


def _title(found: WhatIf) -> str:
    fields = " and ".join(name.rpartition(".")[2].replace("_", " ") for name in found.fields)
    return f"{found.model}: what one GPU needs by {fields}".removeprefix(": ")


def _short(value: float) -> str:
    """A number as people write it: 4k for 4096, where it is so many times 1024."""
    for power, letter in ((2, "M"), (1, "k")):
        if isinstance(value, int) and value and value % 1024**power == 0:
            return f"{value // 1024**power}{letter}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _step(top: float) -> float:
    """1, 2 or 5 times a power of ten, so that there are some five levels."""
    raw = (top or 1) / 5
    unit = 10.0 ** floor(log10(raw))
    return float(next((unit * times for times in (1, 2, 5, 10) if unit * times >= raw), unit * 10))


def _text(x: float, y: float, text: str, anchor: str = "start", shift: float = 0, colour: str = "#222") -> str:
    return f'<text x="{x + shift:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _cross(x: float, y: float, colour: str) -> str:
    return f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m-8 0l8 -8" stroke="{colour}" stroke-width="2"/>'


def _disc(x: float, y: float, fill: str, stroke: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{stroke}" stroke-width="2"/>'


def _placed(mark: str, x: float, y: float) -> str:
    return f'<g transform="translate({x:.1f} {y:.1f})">{mark}</g>'


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    width = max(width, 28 + len(title) * LETTER * 1.5)
    heading = f'<text x="14" y="24" font-size="15" font-weight="bold">{escape(title)}</text>'
    body, size = "\n".join([heading, *parts]), f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )
