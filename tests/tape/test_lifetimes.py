"""What a tape needs of the interpreter, and what it says where it has not got it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import app
from estimator import UnsupportedInterpreter, estimate
from estimator.cli.main import main
from estimator.tape import lifetimes
from estimator.tape.autograd import can_add_in_place, is_alone
from estimator.tape.dtypes import float32
from estimator.tape.tape import Storage, Tape
from estimator.tape.tensor import Tensor, alias, empty
from tests.jobs import cases, forget, job_of, moments
from tests.records import difference

JOB = {"model": "gpt2", "hardware": {"gpu": "h100"}}
CASES = {case["name"]: case for case in cases("fake_steps")}


@pytest.fixture
def untried() -> Iterator[None]:
    """The interpreter is tried anew, and nothing is remembered."""
    lifetimes.try_interpreter.cache_clear()
    forget()
    yield
    lifetimes.try_interpreter.cache_clear()
    forget()


def deathless(patch: pytest.MonkeyPatch) -> None:
    """As on PyPy: nothing is heard of a death when it is due."""
    patch.delattr(Storage, "__del__")


def lockless(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)


@pytest.mark.parametrize(("spoil", "says"), [(deathless, "a tensor outlived"), (lockless, "global interpreter lock")])
@pytest.mark.usefixtures("untried")
def test_an_interpreter_that_cannot_be_trusted_is_refused(
    spoil: Callable[[pytest.MonkeyPatch], None], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(monkeypatch)
    for _ in range(2):  # it is not tried once and then taken
        with pytest.raises(UnsupportedInterpreter, match=f"memory is derived .* {says}.*; use CPython 3.11 or later"):
            estimate(JOB)
    assert main(["llama-2-13b", "--on", "2x24GB"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("willitfit: ")
    assert err.endswith(" [unsupported-interpreter]\n")
    answer = TestClient(app).post("/v1/estimate", content=json.dumps(JOB), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (501, "application/problem+json")
    assert answer.json()["type"] == "/problems#unsupported-interpreter"
    assert says in answer.json()["detail"]


@pytest.mark.parametrize("held_by", lifetimes.SHAPES)
def test_every_shape_finds_what_is_still_held(held_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dies, make, held = lifetimes.SHAPES[held_by], lifetimes._made, []

    def hold(tape: Tape) -> Tensor:
        held.append(make(tape))
        return held[-1]

    assert dies(tape := Tape())
    assert not lifetimes._alive(tape)
    monkeypatch.setattr(lifetimes, "_made", hold)
    assert not dies(tape := Tape()) or lifetimes._alive(tape)


def made(tape: Tape) -> Tensor:
    return empty(tape, (4, 2), float32)


def test_what_nothing_else_refers_to_is_alone_and_the_tape_hears_nothing_of_the_question() -> None:
    tape = Tape()
    leaf, shared = made(tape), made(tape)
    buffers: list[dict[Any, Tensor]] = [
        {leaf: made(tape)},
        {leaf: shared},  # another tensor
        {leaf: shared.detach()},  # another storage
        {leaf: alias(made(tape), (8,))},  # a view
        {leaf: empty(tape, (4, 2), float32, strides=(4, 1))},  # gaps
    ]
    before = [(one[leaf].storage.index, one[leaf].shape, one[leaf].strides) for one in buffers]
    events = len(tape.events)
    assert [can_add_in_place(one, leaf) for one in buffers] == [True, False, False, False, False]
    assert [is_alone(one, leaf) for one in buffers] == [True, True, True, True, True]
    assert not is_alone({leaf: shared}, leaf)
    assert before == [(one[leaf].storage.index, one[leaf].shape, one[leaf].strides) for one in buffers]
    assert buffers[1][leaf].storage is shared.storage
    assert len(tape.events) == events
    buffers.clear()
    del shared, leaf
    assert not lifetimes._alive(tape)


def look(frame: FrameType, event: str, of: object) -> Any:
    """As a debugger or a profiler that looks at variables now and then."""
    if frame.f_lineno % 3 == 0:
        _ = frame.f_locals
    return look


def glance(frame: FrameType, event: str, of: object) -> Any:
    """As a debugger that stops once in each call, at the third line that it runs, wherever in its file that stands."""
    lines = iter((1, 2, 3))

    def line(frame: FrameType, event: str, of: object) -> Any:
        if next(lines, 0) == 3:
            _ = frame.f_locals
        return line

    return line


@pytest.mark.parametrize(("tell", "told"), [(sys.settrace, sys.gettrace), (sys.setprofile, sys.getprofile)])
@pytest.mark.parametrize("name", ["codegen bf16-true foreach", "llama-3.2-1b dora", "mesh small in replicas and clipped"])
@pytest.mark.usefixtures("untried")
def test_who_looks_at_variables_changes_no_answer(tell: Callable[[Any], None], told: Callable[[], Any], name: str) -> None:
    before = told()
    tell(look)
    try:
        answer = moments(job_of(CASES[name]))
        kept = told()
    finally:
        tell(before)
    assert kept is look
    assert not difference("fake_steps", CASES[name], answer)


@pytest.mark.skipif(not lifetimes.SNAPSHOTS, reason="from 3.13 on a look at variables keeps nothing alive")
@pytest.mark.usefixtures("untried")
def test_the_look_would_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lifetimes.try_interpreter()
    monkeypatch.setattr(lifetimes, "SNAPSHOTS", False)
    before = sys.gettrace()
    sys.settrace(glance)
    try:
        answer = moments(job_of(CASES["falcon-7b bf16-mixed"]))
    finally:
        sys.settrace(before)
    assert difference("fake_steps", CASES["falcon-7b bf16-mixed"], answer)
