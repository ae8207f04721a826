"""Which tests need torch, and which are slow: `pytest -m "not torch"` is the quick loop and leaves both out.

It holds every record, table and golden file, and does not even import what needs torch. Slow are properties that are tried on
many jobs, statistics of measured runs (how far off a table is, that its rows give a number), pages that are made of all cases,
examples in pages, fresh interpreters that import everything, and benchmarks.

Of a test that is marked `share(n)` one case in n is asked, others after each change of the estimator's code, so that two runs of
the same code ask the same. `--all` asks every case; so does a run that names tests, by `-k`, by `::` or with benchmarks.
"""

from __future__ import annotations

import gc
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.shares import turn

IMPORTS = re.compile(
    r"^(?:import|from) "
    r"(?:torch|transformers|peft|trl|safetensors|bitsandbytes|accelerate|tests\.judged?|tests\.draw|estimator\.verify)\b",
    re.MULTILINE,
)
SLOW = re.compile(r"^pytestmark = pytest\.mark\.slow$", re.MULTILINE)


@cache
def _needs_torch(path: Path) -> bool:
    return IMPORTS.search(path.read_text(encoding="utf-8")) is not None


def _all_slow(path: Path) -> bool:
    return SLOW.search(path.read_text(encoding="utf-8")) is not None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="ask every case of the tests of which a share is asked otherwise")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "torch: torch is the judge; `-m 'not torch'` leaves these out")
    config.addinivalue_line("markers", "slow: takes seconds; `-m 'not torch'` leaves these out, too")
    config.addinivalue_line("markers", "share(n): one case in n is asked, others after each change of the code; `--all` asks all")
    gc.disable()  # until all is collected


def _quick(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "not torch")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In the quick loop, modules that import torch, which takes longer than most of the others run, and those that are slow as a
    whole."""
    if not _quick(config) or collection_path.suffix != ".py":
        return None
    return True if _needs_torch(collection_path) or _all_slow(collection_path) else None


def _every_case(config: pytest.Config) -> bool:
    """Whether no case is left out that a share would leave out."""
    named = config.option.keyword or any("::" in word for word in config.args)
    return bool(config.option.all or named or config.getoption("benchmark_enable", default=False))


def _not_in_the_share(items: list[pytest.Item]) -> set[pytest.Item]:
    """The cases that are left out: of each test that is marked all but one in so many."""
    tests = defaultdict(list)
    for item in items:
        if (mark := item.get_closest_marker("share")) is not None:
            tests[item.nodeid.partition("[")[0], mark.args[0]].append(item)
    now = turn()
    return {item for (_, share), cases in tests.items() for at, item in enumerate(cases) if (at - now) % min(share, len(cases))}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _needs_torch(item.path):
            item.add_marker("torch")
    left_out = {item for item in items if item.get_closest_marker("slow")} if _quick(config) else set()
    if not _every_case(config):
        left_out |= _not_in_the_share(items)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected stays to the end: Python's search for cycles need not go through it again and again.

    In the quick loop it stays off: it would go through all that estimates make and remember, of which next to nothing lies in
    cycles, and took a quarter of the loop's time. With torch it goes on, as cycles there hold tensors.
    """
    gc.collect()
    gc.freeze()
    if not _quick(session.config):
        gc.enable()
