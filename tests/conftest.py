"""Which tests need torch: `pytest -m "not torch"` is the quick loop, and does not even import those that do."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

IMPORTS = re.compile(
    r"^(?:import|from) "
    r"(?:torch|transformers|peft|trl|safetensors|bitsandbytes|accelerate|tests\.judged?|tests\.draw|estimator\.verify)\b",
    re.MULTILINE,
)


@cache
def _needs_torch(path: Path) -> bool:
    return IMPORTS.search(path.read_text(encoding="utf-8")) is not None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "torch: torch is the judge; `-m 'not torch'` leaves these out")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In the quick loop, modules that import torch: to import it takes longer than most of the others run."""
    quick = config.option.markexpr == "not torch" and collection_path.suffix == ".py"
    return True if quick and _needs_torch(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _needs_torch(item.path):
            item.add_marker("torch")
