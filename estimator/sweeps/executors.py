"""Work for a `concurrent.futures.Executor`: processes of this machine, or Dask's and Ray's through their own executors.

Functions are of modules and their arguments are pickled, so that any worker that has this package can do them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from signal import SIG_IGN, SIGINT, signal
from typing import Any, TypeVar

Result = TypeVar("Result")


def results(executor: Executor, work: Callable[..., Result], many: Sequence[tuple[Any, ...]]) -> Iterator[Result]:
    """What `work` makes of each of many arguments, in their order.

    What a worker fails at, or was lost with, is given out once more, and then done in this process, where an error is raised.
    """
    futures: list[Future[Result]] = []
    try:
        futures += [executor.submit(work, *one) for one in many]
        for one, future in zip(many, futures, strict=True):
            yield _result(executor, work, one, future)
    finally:
        for future in futures:
            future.cancel()


def _result(executor: Executor, work: Callable[..., Result], asked: tuple[Any, ...], future: Future[Result]) -> Result:
    try:
        return future.result()
    except Exception:  # whatever a cluster's own library raises of a worker that is gone
        try:
            return executor.submit(work, *asked).result()
        except Exception:
            return work(*asked)


@contextmanager
def sharing(count: int | None = None) -> Iterator[Executor | None]:
    """So many processes of this machine, by default as many as this one may use processors; None for one. They are started when
    work is given to them. An interrupt is for who asks, who then ends them."""
    if (count or available()) < 2:
        yield None
        return
    executor = ProcessPoolExecutor(count or available(), initializer=signal, initargs=(SIGINT, SIG_IGN))
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def available() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
