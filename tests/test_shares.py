"""Of many alike cases a share is asked: the same of the same code, and all of them where they are asked for."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.jobs import ROOT

ROOM = "tests/planner/test_limits.py"
TEST = f"{ROOM}::test_it_is_the_outermost_of_all_that_fit"


def chosen(*words: str) -> list[str]:
    """The cases of one test that a run with these words asks."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *words]
    said = subprocess.run([*command, "-o", "addopts="], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return re.findall(rf"^{re.escape(TEST)}\[.*\]$", said, re.MULTILINE)


@pytest.mark.slow
def test_a_share_is_asked_and_all_where_they_are_asked_for() -> None:
    every, share = chosen(ROOM, "--all"), chosen(ROOM)
    assert len(every) == 16
    assert len(share) == 4
    assert set(share) < set(every)
    assert chosen(ROOM) == share
    assert chosen(TEST) == every
    (one,) = chosen(f"{TEST}[3]")
    assert one.endswith("[3]")
