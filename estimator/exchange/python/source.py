"""Whether a text is Python, or a notebook of it, and its syntax tree.

Everything is bounded before it is parsed: characters, and runs of operators, each of which takes a level of the parser's stack.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimator.contract.errors import Unreadable
from estimator.contract.reading import parse_json

MOST_SOURCE = 1 << 17
"""Characters of a script."""
MOST_TREE = MOST_TOKENS = 60_000
"""Nodes of its syntax tree, and its words, signs and lines, for each of which the parser keeps a kilobyte or two."""
_IMPORTS = re.compile(r"^[ \t]*(?:from[ \t]+[\w.]+[ \t]+import[ \t]|import[ \t]+\w)", re.MULTILINE)
_NOTEBOOK = re.compile(r'^\s*\{[\s\S]{0,200000}"cells"\s*:|"nbformat"\s*:')
_MAGIC = re.compile(r"^([ \t]*)([!%].*|.*\?)$")
_TOKEN = re.compile(r"\w+|[^\w \t]")
_RUN = re.compile(r"(?:[-+~][ \t]*){100}|(?:\bnot[ \t(]+){60}|(?:\bawait[ \t]+){60}|(?:\blambda\b[^:\n]{0,40}:[ \t]*){60}")


@dataclass(frozen=True, slots=True)
class Source:
    """A script's text, and whether its lines are those of the file."""

    text: str
    notebook: bool = False
    commands: str = ""
    """What a notebook's cells give a shell to run (`!…`)."""


def source(text: str) -> Source | None:
    """The Python that a text is, or that a notebook's cells hold; None for any other text.

    Raises `Unreadable` for a notebook that is no JSON."""
    if text.lstrip().startswith("{"):
        return _notebook(text)
    if not _IMPORTS.search(text) or len(text) > MOST_SOURCE or _is_shell(text):
        return None
    try:
        _parsed(text)
    except SyntaxError:
        return None
    except (ValueError, RecursionError, MemoryError):
        pass  # what is wrong, `tree` says
    return Source(text)


def _is_shell(text: str) -> bool:
    first = text.lstrip().partition("\n")[0]
    return first.startswith("#!") and "python" not in first


def _notebook(text: str) -> Source | None:
    if not _NOTEBOOK.search(text):
        return None
    found = parse_json(text, "notebook")
    if not isinstance(found, Mapping) or not isinstance(found.get("cells"), list) or "nbformat" not in found:
        return None
    lines: list[str] = []
    commands: list[str] = []
    for cell in found["cells"]:
        if isinstance(cell, Mapping) and cell.get("cell_type") == "code":
            _add_cell(_text(cell.get("source")), lines, commands)
    return Source("\n".join(lines), notebook=True, commands="\n".join(commands))


def _add_cell(text: str, lines: list[str], commands: list[str]) -> None:
    """A cell's lines, those for IPython taken out; a cell that is no Python, or another language's, is left out."""
    if text.lstrip().startswith("%%"):
        kind = text.lstrip().split(None, 1)[0]
        if kind in ("%%bash", "%%sh", "%%shell"):
            commands.append(text.lstrip().partition("\n")[2])
            return
        if kind not in ("%%capture", "%%time", "%%timeit"):
            return
        text = text.lstrip().partition("\n")[2]
    kept: list[str] = []
    continued = False
    for line in text.split("\n"):
        magic = _MAGIC.match(line)
        if continued or magic:
            if continued or line.lstrip().startswith("!"):
                commands.append(line.lstrip().removeprefix("!"))
            continued = line.endswith("\\")
            kept.append(f"{magic[1]}pass" if magic else "")
        else:
            kept.append(line)
    try:
        _parsed("\n".join(kept))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    lines += kept


def _text(given: Any) -> str:
    if isinstance(given, list):
        return "".join(str(line) for line in given)
    return given if isinstance(given, str) else ""


def tree(found: Source) -> ast.Module:
    """The syntax tree. Raises `Unreadable` for more than is ever written."""
    try:
        parsed = _parsed(found.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"is no Python that can be read: {type(error).__name__}", "script") from None
    if sum(1 for _ in zip(ast.walk(parsed), range(MOST_TREE + 1), strict=False)) > MOST_TREE:
        raise Unreadable(f"has more than {MOST_TREE:,} expressions, as no training script needs", "script")
    return parsed


def _parsed(text: str) -> ast.Module:
    if len(text) > MOST_SOURCE:
        raise Unreadable(f"has more than {MOST_SOURCE:,} characters, as no training script needs", "script")
    if sum(1 for _ in _TOKEN.finditer(text)) > MOST_TOKENS:
        raise Unreadable(f"has more than {MOST_TOKENS:,} words and signs, as no training script needs", "script")
    if _RUN.search(text):
        raise ValueError("operators within operators")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)
