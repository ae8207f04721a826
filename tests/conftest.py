"""Which tests need torch, and which are slow: `pytest -m "not torch"` is the quick loop and leaves both out.

It holds every record, table and golden file, and does not even import what needs torch. Slow are properties that are tried on
many jobs, pages that are made of all cases, examples in pages, and benchmarks.
"""

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
    config.addinivalue_line("markers", "slow: takes seconds; `-m 'not torch'` leaves these out, too")


def _quick(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "not torch")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In the quick loop, modules that import torch: to import it takes longer than most of the others run."""
    return True if _quick(config) and collection_path.suffix == ".py" and _needs_torch(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _needs_torch(item.path):
            item.add_marker("torch")
    if _quick(config):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
