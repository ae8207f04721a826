"""An answer as a notebook, a chat or an issue shows it: headings, tables and lists, as HTML and as Markdown.

What is shown is read off the answer's own fields, so that every kind of answer has it: sentences first, then numbers, rows and
lists. The job, notes and versions are left to `to_json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, NamedTuple

from estimator.contract.answer.part import AnswerPart
from estimator.contract.units import gib

ROWS = 20
"""Rows of a table after which the others are counted."""
LEFT_OUT = frozenset({"job", "notes", "versions", "patch", "points", "rest_count", "rest_bytes"})
IN_TITLE = frozenset({"model", "hardware", "fits", "verdict", "reason"})
LATER = frozenset({"assumptions", "not_modelled"})
"""Lists that HTML shows when they are opened."""
FIRST = frozenset({"warnings", "suggestions"})
LAST = frozenset({"rent"})
"""What is told after the rows."""
ESCAPED = str.maketrans({"|": "\\|", "\n": " ", "<": "&lt;", "*": "\\*", "_": "\\_", "`": "\\`"})


class Section(NamedTuple):
    """A table, its first row of column heads if it has `heads`; a list has rows of one cell."""

    title: str
    rows: list[list[str]]
    heads: bool
    field: str


def html(answer: AnswerPart) -> str:
    """An answer as HTML that stands for itself: no script, no style sheet, every text escaped."""
    parts = [f"<h3>{escape(_title(answer))}</h3>"]
    for section in _ordered(answer):
        shown = _listed(section) if _is_list(section) else _table(section)
        if section.field in LATER:
            parts.append(f"<details><summary>{escape(section.title)} ({len(section.rows)})</summary>{shown}</details>")
        else:
            parts.append((f"<h4>{escape(section.title)}</h4>" if section.title else "") + shown)
    return "\n".join(parts)


def markdown(answer: AnswerPart) -> str:
    """An answer as GitHub's Markdown."""
    lines = [f"### {_cell(_title(answer))}", ""]
    for section in _ordered(answer):
        later = section.field in LATER
        if later:
            lines += [f"<details><summary>{_cell(section.title)} ({len(section.rows)})</summary>", ""]
        elif section.title:
            lines += [f"#### {_cell(section.title)}", ""]
        if _is_list(section):
            lines += [*(f"- {_cell(row[0])}" for row in section.rows), "", *["</details>", ""] * later]
            continue
        head, *rows = section.rows if section.heads else [["", ""], *section.rows]
        lines += [_line(head), _line(["---"] * len(head)), *map(_line, rows), ""]
    return "\n".join(lines)


def _ordered(answer: AnswerPart) -> list[Section]:
    """What is to be done comes before the numbers; what is opened to be read, at the end."""
    ranks = dict.fromkeys(FIRST, 0) | dict.fromkeys(LAST, 2) | dict.fromkeys(LATER, 3)
    return sorted(sections(answer), key=lambda section: ranks.get(section.field, 1))


def sections(answer: AnswerPart, title: str = "", field: str = "") -> Iterator[Section]:
    """What an answer is shown as: its own values, then those of each of its parts, its rows and its lists."""
    said = LEFT_OUT if title else LEFT_OUT | IN_TITLE
    own = [[_spaced(name), text] for name, value in answer if name not in said and (text := _text(name, value)) is not None]
    if own:
        yield Section(title, own, False, field)
    for name, value in answer:
        if name in LEFT_OUT or not value:
            continue
        inner = f"{title}: {_spaced(name)}" if title else _spaced(name)
        if isinstance(value, AnswerPart):
            yield from sections(value, inner, name)
        elif isinstance(value, Mapping):
            if rows := [[_spaced(key), _said(name, one)] for key, one in value.items() if not _deep(one)]:
                yield Section(inner, rows, False, name)
        elif isinstance(value, list) and isinstance(value[0], AnswerPart):
            yield Section(inner, _rows(value), True, name)
        elif isinstance(value, list) and isinstance(value[0], str):
            yield Section(inner, [[one] for one in value], False, name)


def _title(answer: AnswerPart) -> str:
    """The sentence that says most: which model on what, and the verdict with its reason."""
    model, hardware, verdict, reason = (getattr(answer, name, None) for name in ("model", "hardware", "verdict", "reason"))
    asked = " on ".join(str(one) for one in (model, hardware) if one)
    return ": ".join(str(one) for one in (asked, verdict, reason) if one) or type(answer).__name__


def _rows(parts: list[AnswerPart]) -> list[list[str]]:
    """A head and a row for each of some parts that are alike; columns in which nothing is said are left out."""
    names = [name for name in type(parts[0]).model_fields if name not in LEFT_OUT]
    cells = {name: [_text(name, getattr(part, name)) or "" for part in parts] for name in names}
    shown = [name for name in names if any(cells[name])]
    rows = [[cells[name][at] for name in shown] for at in range(min(len(parts), ROWS))]
    if len(parts) > ROWS:
        rows.append([f"and {len(parts) - ROWS} more", *[""] * (len(shown) - 1)])
    return [[_spaced(name) for name in shown], *rows]


def _text(name: str, value: Any) -> str | None:
    """A value as people read it; None for what is no single value, or is not there."""
    if value is None or value == "" or _deep(value):
        return None
    return _said(name, value)


def _said(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return gib(value) if "bytes" in name or name in ("at_peak", "phases", "overhead") else f"{value:,}"
    if isinstance(value, float):
        return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}") + " s" * name.endswith("seconds")
    if isinstance(value, list | tuple):
        return (" to " if "range" in name else " × ").join(_said(name, one) for one in value)
    return str(value)


def _deep(value: Any) -> bool:
    """Whether it is no single value, and no short row of such."""
    if isinstance(value, list | tuple):
        return not value or any(not isinstance(one, int | float) for one in value)
    return isinstance(value, AnswerPart | Mapping)


def _spaced(name: str) -> str:
    return name.removesuffix("_bytes").removesuffix("_seconds").replace("_", " ")


def _is_list(section: Section) -> bool:
    return not section.heads and all(len(row) == 1 for row in section.rows)


def _listed(section: Section) -> str:
    return "<ul>" + "".join(f"<li>{escape(row[0])}</li>" for row in section.rows) + "</ul>"


def _table(section: Section) -> str:
    head, rows = (section.rows[0], section.rows[1:]) if section.heads else ([], section.rows)
    top = "<thead><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr></thead>" if head else ""
    first = "td" if section.heads else 'th scope="row"'
    body = "".join(
        f"<tr><{first}>{escape(row[0])}</{first[:2]}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return f"<table>{top}<tbody>{body}</tbody></table>"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.translate(ESCAPED)
