"""How many answers a second the service gives, and how long small questions take beside large ones:

    python -m tests.benchmarks.service_load --seconds 3

An empty route is measured in the same run, on a FastAPI application of its own under the same server: on a busy machine only the
ratio says something. Clients keep their connections and ask again as soon as they are answered.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import quantiles

from fastapi import FastAPI

empty = FastAPI(openapi_url=None)


@empty.get("/livez")
async def nothing() -> dict[str, str]:
    """The empty route."""
    return {"status": "alive"}


Times = list[float]
FIT = "/v1/fit?model=llama-2-13b&on=2x24GB"
_SEEDS = itertools.count(1)


@contextmanager
def served(*command: str, **environment: str) -> Iterator[int]:
    """A server at a port of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    whole = [sys.executable, "-m", *command, "--port", str(port)]
    process = subprocess.Popen(whole, env={**os.environ, **environment}, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes = b"") -> str:
    """One request on a connection that stays; how it was answered: `answered`, or the slug of the problem."""
    method = "POST" if body else "GET"
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    said = await reader.readexactly(length)
    return "answered" if head.split(b" ", 2)[1] == b"200" else str(json.loads(said)["type"]).rpartition("#")[2]


async def client(port: int, path: str, end: float, times: Times, bodies: Iterator[bytes] | None = None, pause: float = 0) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < end:
        begun = time.perf_counter()
        found = await ask(reader, writer, path, next(bodies) if bodies else b"")
        if found != "answered":
            raise AssertionError(f"{path}: {found}")
        times.append(time.perf_counter() - begun)
        await asyncio.sleep(pause)
    writer.close()


async def rates(port: int, path: str, clients: int, seconds: float) -> Times:
    times: Times = []
    end = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, path, end, times) for _ in range(clients)))
    return times


def said(name: str, times: Times, seconds: float) -> float:
    """A line of the report; requests a second."""
    cuts = quantiles(times, n=100) if len(times) > 1 else [0.0] * 99
    rate = len(times) / seconds
    shown = "   ".join(f"p{part} {1000 * cuts[part - 1]:8.1f} ms" for part in (50, 95, 99))
    print(f"{name:44} {rate:8.0f}/s   {shown}   ({len(times)})", flush=True)
    return rate


def small() -> Iterator[bytes]:
    """Questions of a few milliseconds that nobody asked before."""
    for number in _SEEDS:
        yield json.dumps(
            {"model": "gpt2", "hardware": {"gpu": "t4"}, "training": {"sequence_length": 64 + number % 900, "tokens": number}}
        ).encode()


def large(number: int) -> bytes:
    """A question of tens of seconds: 4,096 layers, all of which the allocator is played with."""
    sizes = {"hidden_size": 2048 + 64 * number, "intermediate_size": 5632, "num_attention_heads": 32, "vocab_size": 32000}
    return json.dumps(
        {"model": {"model_type": "llama", "num_hidden_layers": 4096, **sizes}, "hardware": {"gpu": "h100"}}
    ).encode()


async def beside_large(port: int, nothing: int, count: int, seconds: float, settle: float) -> None:
    """Small questions, and the empty route, while `count` large ones run or wait."""
    opened = []
    for number in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append((writer, asyncio.ensure_future(ask(reader, writer, "/v1/estimate", large(number)))))
    await asyncio.sleep(settle)
    found: dict[str, Times] = {"an empty route": [], "/livez": [], "remembered": [], "new": []}
    end = time.perf_counter() + seconds
    await asyncio.gather(
        client(nothing, "/livez", end, found["an empty route"], pause=0.01),
        client(port, "/livez", end, found["/livez"], pause=0.01),
        client(port, FIT, end, found["remembered"], pause=0.01),
        client(port, "/v1/estimate", end, found["new"], small(), pause=0.01),
    )
    ended = Counter(task.result() for _, task in opened if task.done())
    for name, times in found.items():
        said(f"{name}, beside {count} large ones", times, seconds)
    print(f"of the large ones {count - ended.total()} are at work or wait; the others: {dict(ended)}")
    if others := {*ended} - {"answered", "too-costly", "busy"}:
        raise AssertionError(f"large questions were refused: {others}")
    for writer, task in opened:
        task.cancel()
        writer.close()


async def measure(service: int, nothing: int, seconds: float, settle: float) -> None:
    await rates(service, FIT, 1, 0.1)
    for clients in (1, 8, 64):
        base = said(f"an empty route, {clients} clients", await rates(nothing, "/livez", clients, seconds), seconds)
        rate = said(f"a question asked before, {clients} clients", await rates(service, FIT, clients, seconds), seconds)
        print(f"{'':44} {rate / base:8.2f} of the empty route's rate")
    alone: Times = []
    await client(service, "/v1/estimate", time.perf_counter() + seconds, alone, small(), pause=0.01)
    said("new small questions, alone", alone, seconds)
    await beside_large(service, nothing, 60, seconds, settle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--settle", type=float, default=0.5, help="seconds between large questions and small ones")
    options = parser.parse_args()
    bare = ("uvicorn", "tests.benchmarks.service_load:empty", "--no-access-log", "--log-level", "warning")
    with served("estimator.cli", "serve", WILLITFIT_LOG="none") as service, served(*bare) as nothing:
        asyncio.run(measure(service, nothing, options.seconds, options.settle))


if __name__ == "__main__":
    main()
