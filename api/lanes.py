"""Worker processes, and who waits for them: lanes for questions of several sizes.

A question begins in the lane of its kind, and goes on to the next, from its beginning, when it has had all the processor time
that the lane gives. Each lane has its own processes and a queue of its own, both bounded, so that small questions do not wait for
large ones. A question whose client has left, or that is over its budget, ends with its process; another is forked, facts and all,
within milliseconds.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from time import monotonic
from typing import Any

from .answers import Rendered, lane
from .settings import Settings
from .worker import OUT_OF_MEMORY, SIZE, packed, work

QUESTIONS_OF_A_PROCESS = 1000
"""After which it is replaced, so that what it remembers does not grow for ever."""
BY_THE_CLOCK = 3
"""Times its processor time that a question may take by the clock. Where processor time is counted, one that does not get it is
sent away, as when too many wait: the machine is busy. Elsewhere the clock is all that says that it is too costly."""
COUNTED = hasattr(signal, "SIGPROF")
"""Whether the platform counts processor time."""
HURRY = 10
"""By how much less processor time a lane gives to a question at most: as many times less as questions wait."""
LEAST = 0.15
"""Seconds of processor time that a lane gives however many wait: what a usual question takes that nobody asked before."""
KNOWN_SECONDS, MOST_KNOWN = 600, 10_000
"""How long questions are known to be large, or too large, and how many of them."""
NICE = {"small": 5, "medium": 12, "large": 19}
"""The lanes, and how far their processes stand back: larger questions behind smaller ones, all behind the server itself."""
MEDIUM = 1 / 2
"""Share of a question's processor time that the medium lane gives: so much of it is spent again on one that goes on."""


class Full(Exception):
    """More questions wait than may, or one has waited for too long."""


class OverBudget(Exception):
    """A question that took more than it may: `what` of it."""

    def __init__(self, what: str):
        self.what = what
        super().__init__(what)


class Broken(Exception):
    """A process that ended by itself."""


class Process:
    """One worker process, and the server's end of its connection."""

    def __init__(self, context: Any, memory: int, nice: int):
        self.end, other = socket.socketpair()
        self.process = context.Process(target=work, args=(other, memory, nice), daemon=True)
        self.process.start()
        other.close()
        self.answered = 0

    async def connect(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(sock=self.end)

    async def ended(self) -> None:
        """When it has been ended and its connection is closed."""
        self.end_now()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def ask(self, kind: str, arguments: dict[str, Any], seconds: float) -> Rendered:
        """The answer; `OverBudget` or `Broken`, after which the process is of no use."""
        self.answered += 1
        try:
            self.writer.write(packed((kind, arguments, seconds)))
            (size,) = SIZE.unpack(await self.reader.readexactly(SIZE.size))
            return Rendered(*pickle.loads(await self.reader.readexactly(size)))
        except (asyncio.IncompleteReadError, OSError):
            await asyncio.to_thread(self.process.join, 1)
            code = self.process.exitcode
            if code in (OUT_OF_MEMORY, -9):  # 9: the kernel has no more, for anyone
                raise OverBudget("memory") from None
            if COUNTED and code == -signal.SIGPROF:
                raise OverBudget("time") from None
            raise Broken(f"a worker process ended with {code}") from None

    def end_now(self) -> None:
        self.process.kill()
        self.writer.close()


class Lane:
    """Processes that answer one question at a time, and a bounded queue for them."""

    def __init__(self, settings: Settings, processes: int, seconds: float, nice: int):
        self.settings, self.size, self.seconds, self.nice = settings, processes, seconds, nice
        self.busy = 0
        self.processes: set[Process] = set()
        self.idle: list[Process] = []
        self.waiters: list[asyncio.Future[Process]] = []
        self.starting: set[asyncio.Task[None]] = set()
        self.context: Any = None

    async def start(self, context: Any) -> None:
        self.context = context
        await asyncio.gather(*(self._add() for _ in range(self.size)))

    async def _add(self) -> None:
        process = await asyncio.to_thread(Process, self.context, self.settings.memory, self.nice)
        self.processes.add(process)
        await process.connect()
        self._free(process)

    @property
    def waiting(self) -> int:
        """How many questions wait."""
        return len(self.waiters)

    async def stop(self) -> None:
        """End all processes, those that are just being started as well."""
        await asyncio.gather(*self.starting, return_exceptions=True)
        await asyncio.gather(*(process.ended() for process in self.processes))

    async def ask(self, kind: str, arguments: dict[str, Any]) -> Rendered:
        """The answer of the next process that is free. Raises `Full`, `OverBudget` and `Broken`."""
        process = await self._next()
        self.busy += 1
        kept = False
        try:
            async with asyncio.timeout(None if COUNTED else BY_THE_CLOCK * self.settings.seconds):
                found = await process.ask(kind, arguments, self._slice())
            kept = process.answered < QUESTIONS_OF_A_PROCESS
            return found
        except TimeoutError:
            raise OverBudget("time") from None
        finally:
            self.busy -= 1
            if kept:
                self._free(process)
            else:
                self._replace(process)

    async def _next(self) -> Process:
        if self.idle:
            return self.idle.pop()
        if self.waiting >= self.settings.queue:
            raise Full
        waiter: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            async with asyncio.timeout(self.settings.wait):
                return await waiter
        except (TimeoutError, asyncio.CancelledError) as error:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
            elif waiter.done() and not waiter.cancelled():
                self._free(waiter.result())  # which came in the same moment
            if isinstance(error, TimeoutError):
                raise Full from None
            raise

    def _slice(self) -> float:
        """Seconds of processor time: fewer the more others wait, if there is a lane to go on to."""
        last = self.seconds >= self.settings.seconds
        return self.seconds if last else min(self.seconds, max(self.seconds / min(max(self.waiting, 1), HURRY), LEAST))

    def _free(self, process: Process) -> None:
        """Give a process to who came last: where more is asked than can be answered, some are answered soon, not all too late."""
        while self.waiters:
            waiter = self.waiters.pop()
            if not waiter.done():
                waiter.set_result(process)
                return
        self.idle.append(process)

    def _replace(self, process: Process) -> None:
        self.processes.discard(process)
        process.end_now()
        task = asyncio.ensure_future(self._add())
        self.starting.add(task)
        task.add_done_callback(self.starting.discard)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a question until some moment: the lane that it begins in, or that it is over its budget."""

    until: float
    lane: int
    refused: OverBudget | None


@dataclass(slots=True)
class Running:
    """A question that is being worked out, and how many wait for it."""

    task: asyncio.Task[Rendered]
    askers: int = 0


class Work:
    """All that is worked out, each question once however many ask it at the same time."""

    def __init__(self, settings: Settings):
        self.patience = settings.wait + BY_THE_CLOCK * settings.seconds
        seconds = sorted((settings.quick, MEDIUM * settings.seconds, settings.seconds))
        processes = (settings.workers, settings.workers, max(1, settings.workers // 2))
        shapes = zip(NICE.values(), seconds, processes, strict=True)
        self.lanes = [Lane(settings, size, budget, nice) for nice, budget, size in shapes]
        self.running: dict[bytes, Running] = {}
        self.known: dict[bytes, Known] = {}

    async def start(self) -> None:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            context.set_forkserver_preload([f"{__package__}.warm"])
        await asyncio.gather(*(lane.start(context) for lane in self.lanes))

    async def stop(self) -> None:
        """End all processes, whatever they are at."""
        tasks = [running.task for running in self.running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(lane.stop() for lane in self.lanes))

    async def ask(self, kind: str, arguments: dict[str, Any]) -> Rendered:
        """The answer to a question. Raises `Full`, `OverBudget` and `Broken`; cancelling ends the work, unless others wait."""
        key = blake2b(pickle.dumps((kind, arguments)), digest_size=16).digest()
        running = self.running.get(key)
        if running is None:
            running = self.running[key] = Running(asyncio.ensure_future(self._in_time(key, kind, arguments)))
        running.askers += 1
        try:
            return await asyncio.shield(running.task)
        finally:
            running.askers -= 1
            if not running.askers:
                running.task.cancel()
                if self.running.get(key) is running:
                    del self.running[key]

    async def _in_time(self, key: bytes, kind: str, arguments: dict[str, Any]) -> Rendered:
        """The answer, unless the machine is so busy that whoever asked has long given up."""
        try:
            async with asyncio.timeout(self.patience):
                return await self._answer(key, kind, arguments)
        except TimeoutError:
            raise Full from None

    async def _answer(self, key: bytes, kind: str, arguments: dict[str, Any]) -> Rendered:
        known = self.known.get(key)
        if known is None or known.until < monotonic():
            known = Known(0.0, lane(kind, arguments), None)
        if known.refused:
            raise known.refused
        for number in range(known.lane, len(self.lanes)):
            try:
                return await self.lanes[number].ask(kind, arguments)
            except OverBudget as error:
                last = error.what == "memory" or number + 1 == len(self.lanes)
                self._remember(key, Known(monotonic() + KNOWN_SECONDS, number + 1, error if last else None))
                if last:
                    raise
        raise AssertionError("the last lane answers or raises")

    def _remember(self, key: bytes, known: Known) -> None:
        self.known.pop(key, None)
        self.known[key] = known
        if len(self.known) > MOST_KNOWN:
            del self.known[next(iter(self.known))]
