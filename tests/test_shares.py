"""Of many alike cases a share is asked: the same of the same code, and all of them where they are asked for."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.jobs import ROOT

ROOM = "tests/planner/test_limits.py"
TEST = f"{ROOM}::test_it_is_the_outermost_of_all_that_fit"
COLLECTED = """
import sys, pytest
for words in sys.argv[1:]:
    print("==")
    assert pytest.main(["--collect-only", "-q", "-o", "addopts=", *words.split()]) == 0
"""


def chosen(*runs: str) -> list[list[str]]:
    """The cases of one test that runs with these words ask; one interpreter collects for all of them."""
    command = [sys.executable, "-W", "ignore", "-c", COLLECTED, *runs]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [re.findall(rf"^{re.escape(TEST)}\[.*\]$", run, re.MULTILINE) for run in said.split("==\n")[1:]]


@pytest.mark.slow
def test_a_share_is_asked_and_all_where_they_are_asked_for() -> None:
    every, share, again, named, (one,) = chosen(f"{ROOM} --all", ROOM, ROOM, TEST, f"{TEST}[3]")
    assert len(every) == 16
    assert len(share) == 4
    assert set(share) < set(every)
    assert again == share
    assert named == every
    assert one.endswith("[3]")
