"""Rooms are built on each other in one order, which docs/design.md lists: none imports one that comes after it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs import ROOT

ROOMS = re.findall(r"^      (\w+)/ ", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"), re.MULTILINE)
PACKAGE = ROOT / "estimator"


def _imported(path: Path) -> Iterator[str]:
    """The rooms that a module imports from, at its top or later."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("estimator."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.module == "estimator":
            yield from (alias.name for alias in node.names if alias.name in ROOMS)
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("estimator."))


def test_every_folder_is_a_room() -> None:
    assert sorted(ROOMS) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    assert [path.name for path in PACKAGE.glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("room", ROOMS)
def test_it_imports_only_what_it_is_built_on(room: str) -> None:
    later = ROOMS[ROOMS.index(room) + 1 :]
    against = [(str(path.relative_to(ROOT)), name) for path in (PACKAGE / room).rglob("*.py") for name in _imported(path)]
    assert [pair for pair in against if pair[1] in later] == []


def test_every_room_says_what_it_is() -> None:
    """The docstring of each package, in one sentence."""
    for room in ROOMS:
        assert ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))), room
