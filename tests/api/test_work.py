"""The service as it runs: worker processes with budgets, bounded queues, clients that leave, connections that say nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.answers import lane
from api.lanes import LEAST, Full, Lane, OverBudget, Work
from api.settings import Settings
from estimator import estimate
from tests.jobs import ROOT

pytestmark = pytest.mark.slow

PATIENCE = 120
"""Seconds until a test gives up on what should happen at once: machines may be busy."""
JOB = {"model": "gpt2", "hardware": {"gpu": "t4"}}


def heavy(number: int = 0) -> dict[str, Any]:
    """A job that takes tens of seconds: 4,096 layers, all of which the allocator is played with."""
    sizes = {"hidden_size": 2048 + 64 * number, "intermediate_size": 5632, "num_attention_heads": 32, "vocab_size": 32000}
    return {"model": {"model_type": "llama", "num_hidden_layers": 4096, **sizes}, "hardware": {"gpu": "h100"}}


@contextmanager
def served(**settings: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A service of its own: the process, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **{f"WILLITFIT_{name}": text for name, text in settings.items()}}
    command = [sys.executable, "-m", "estimator.cli", "serve", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, text=True)
    try:
        address = f"http://127.0.0.1:{port}"
        until(lambda: answers(address))
        yield process, address
    finally:
        process.kill()
        process.wait()


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/livez", timeout=PATIENCE).status_code == 200
    except httpx.ConnectError:
        return False


def until(so: Callable[[], bool]) -> None:
    """Waits for something that should soon be so."""
    end = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def at(address: str, what: str) -> float:
    """How many questions are `working` or `waiting`."""
    text = httpx.get(f"{address}/metrics", timeout=PATIENCE).text
    return sum(float(number) for number in re.findall(rf"^willitfit_{what}\{{.*\}} (\S+)$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with served(WORKERS="1", QUEUE="1", SECONDS="2", QUICK="0.5", WAIT="110", BODY="1", ROOT_PATH="/fit") as (_, address):
        yield address


def test_a_worker_gives_the_same_bytes(service: str) -> None:
    assert httpx.post(f"{service}/v1/estimate", json=JOB, timeout=PATIENCE).text == estimate(JOB).to_json()


def test_a_question_over_its_budget_is_refused_and_stays_so(service: str) -> None:
    answer = httpx.post(f"{service}/v1/estimate", json=heavy(), timeout=PATIENCE)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems#too-costly")
    assert "processor time" in answer.json()["detail"]
    assert httpx.post(f"{service}/v1/estimate", json=heavy(), timeout=PATIENCE).json() == answer.json()
    assert httpx.post(f"{service}/v1/estimate", json=JOB, timeout=PATIENCE).status_code == 200


def test_too_many_questions_are_sent_away_and_others_answered_meanwhile(service: str) -> None:
    statuses: list[tuple[int, str]] = []

    def ask(number: int) -> None:
        answer = httpx.post(f"{service}/v1/estimate", json=heavy(number), timeout=PATIENCE)
        statuses.append((answer.status_code, answer.headers.get("retry-after", "")))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(10, 22)]
    for thread in threads:
        thread.start()
    until(lambda: at(service, "working") > 0)
    assert httpx.get(f"{service}/livez", timeout=PATIENCE).status_code == 200
    for thread in threads:
        thread.join()
    assert {status for status, _ in statuses} == {422, 503}
    assert all(bool(after) == (status == 503) for status, after in statuses)


def test_nothing_is_worked_out_for_who_has_left() -> None:
    with served(WORKERS="1", SECONDS="600", QUICK="600") as (_, address):
        body = json.dumps(heavy(30)).encode()
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /v1/estimate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            until(lambda: at(address, "working") == 1)
        until(lambda: at(address, "working") == 0)
        assert httpx.post(f"{address}/v1/estimate", json=JOB, timeout=PATIENCE).status_code == 200


@pytest.mark.parametrize(
    "said",
    [b"", b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Long", b"POST /v1/estimate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"],
)
def test_a_connection_that_says_no_more_is_closed(service: str, said: bytes) -> None:
    host, port = service.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as client:
        client.sendall(said)
        got = b""
        while more := client.recv(65536):
            got += more
    assert got == b"" or got.startswith(b"HTTP/1.1 408")
    assert bool(got) == said.startswith(b"POST")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_what_is_worked_out(how: signal.Signals) -> None:
    with served(WORKERS="1", SECONDS="600", QUICK="600") as (process, address):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        begun = children.read_text().split() if children.exists() else []

        def stop() -> None:
            until(lambda: at(address, "working") == 1)
            process.send_signal(how)

        stopping = threading.Thread(target=stop)
        stopping.start()
        with pytest.raises(httpx.HTTPError):
            httpx.post(f"{address}/v1/estimate", json=heavy(40), timeout=PATIENCE).raise_for_status()
        stopping.join()
        process.wait(PATIENCE)
        until(lambda: not any(Path(f"/proc/{number}").exists() for number in begun))


def test_memory_is_bounded() -> None:
    async def ask(memory: int) -> int:
        work = Work(Settings(workers=1, memory=memory, seconds=600, quick=600))
        await work.start()
        try:
            return (await work.ask("estimate", {"job": json.dumps(heavy(50) | {"hardware": {}}).encode()})).status
        finally:
            await work.stop()

    with pytest.raises(OverBudget, match="memory"):
        asyncio.run(ask(2**20))


def test_a_question_that_a_busy_machine_does_not_answer_in_time_is_sent_away_and_not_held_too_costly() -> None:
    async def ask() -> Any:
        work = Work(Settings(workers=1, seconds=600, quick=600))
        await work.start()
        work.patience = 0.5
        try:
            with pytest.raises(Full):
                await work.ask("estimate", {"job": json.dumps(heavy(60)).encode()})
            assert work.known == {}
            work.patience = PATIENCE
            return await work.ask("estimate", {"job": json.dumps(JOB).encode()})
        finally:
            await work.stop()

    assert asyncio.run(ask()).status == 200


def test_the_same_question_is_worked_out_once() -> None:
    async def ask() -> tuple[int, set[bytes]]:
        work = Work(Settings(workers=1, queue=0))
        await work.start()
        try:
            asking = [work.ask("estimate", {"job": json.dumps(JOB).encode()}) for _ in range(20)]
            found = {one.body for one in await asyncio.gather(*asking)}
            return sum(process.answered for lane in work.lanes for process in lane.processes), found
        finally:
            await work.stop()

    assert asyncio.run(ask()) == (1, {estimate(JOB).to_json().encode()})


DEEP = {"model": {"model_type": "llama", "num_hidden_layers": 4096}}


@pytest.mark.parametrize(
    ("kind", "arguments", "begins"),
    [
        ("estimate", {"job": json.dumps(JOB).encode()}, 0),
        ("estimate", {"job": json.dumps(DEEP).encode()}, 1),
        ("line", {"job": b'{"model": {"n_layer":' + b"9" * 5000}, 1),
        ("estimate", {"job": [("model", "gpt2"), ("on", "t4")]}, 0),
        ("timeline", {"job": [("model", json.dumps(DEEP["model"]))], "on": None, "form": "json", "tensors": 9}, 1),
        ("estimate", {"job": [("model.num_hidden_layers", "4096")]}, 1),
        ("estimate", {"job": b'{"model": "gpt2", "task": "serve", "serving": {"gpu_layers": 999}}'}, 0),
        ("estimate", {"job": b"\xff\x00"}, 0),
        ("model", {"name": "layers"}, 0),
        ("fit", {"model": "gpt2", "on": "t4"}, 1),
    ],
)
def test_a_question_begins_where_its_cost_puts_it(kind: str, arguments: dict[str, Any], begins: int) -> None:
    assert lane(kind, arguments) == begins


def test_a_usual_question_is_answered_however_many_wait() -> None:
    slices = []
    for waiting in (0, 1, 2, 60):
        small = Lane(Settings(), processes=1, seconds=0.5, nice=0)
        small.waiters = [None] * waiting  # type: ignore[list-item]
        slices.append(small._slice())
    assert slices == [0.5, 0.5, 0.25, LEAST]
    assert Lane(Settings(), processes=1, seconds=0.01, nice=0)._slice() == 0.01
    assert Lane(Settings(), processes=1, seconds=20, nice=0)._slice() == 20


def test_a_queue_of_none_is_full_at_once() -> None:
    async def ask() -> list[Any]:
        work = Work(Settings(workers=1, queue=0))
        await work.start()
        try:
            jobs = [json.dumps({**JOB, "task": task}).encode() for task in ("train", "serve")]
            return await asyncio.gather(*(work.ask("estimate", {"job": job}) for job in jobs), return_exceptions=True)
        finally:
            await work.stop()

    found = asyncio.run(ask())
    assert found[0].status == 200
    assert isinstance(found[1], Full)
