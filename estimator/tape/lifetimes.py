"""What a tape needs of the interpreter: objects die with their last reference, at once, and nothing else keeps them alive.

CPython's objects do, though the language promises it nowhere; PyPy collects them when it sees fit, and a CPython without its
global interpreter lock may put deaths off. So the interpreter is tried once, before the first run, and refused where a tensor
outlives what held it.
"""

from __future__ import annotations

import gc
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

from estimator.contract.errors import UnsupportedInterpreter
from estimator.tape.autograd import can_add_in_place, is_alone
from estimator.tape.dtypes import float32
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty

SNAPSHOTS = sys.version_info < (3, 13)
"""Whether a frame that is asked for its `f_locals` keeps a copy, and with it what the copy names (PEP 667 ended that)."""
Written = TypeVar("Written")


def undisturbed(write: Callable[[], Written]) -> Written:
    """What `write` returns, which writes a tape. Raises `UnsupportedInterpreter` where none can be trusted.

    Meanwhile Python's search for cycles is off, which takes a third of a run's time and finds none. So is, where a look at a
    frame's variables would keep them alive, any Python function that is told of calls and lines, as a debugger's is. (What is
    written in C could not be put back.)
    """
    told: tuple[tuple[Any, Any], ...] = ((sys.settrace, sys.gettrace()), (sys.setprofile, sys.getprofile()))
    looking = [(tell, function) for tell, function in told if SNAPSHOTS and callable(function)]
    with uncollected():
        for tell, _ in looking:
            tell(None)
        try:
            try_interpreter()
            return write()
        finally:
            for tell, function in looking:
                tell(function)


@contextmanager
def uncollected() -> Iterator[None]:
    """Meanwhile Python's search for cycles is off: for work that makes many objects and keeps most, which it would go through
    again and again. What lies in cycles is found afterwards, so the work should be a few seconds long at most."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@cache
def try_interpreter() -> None:
    """Raise `UnsupportedInterpreter` where no tape can be trusted."""
    reason = _fault()
    if reason:
        python = f"{platform.python_implementation()} {platform.python_version()}"
        raise UnsupportedInterpreter(
            f"{python} cannot be used: memory is derived from the moments at which objects die, and {reason}; use CPython 3.11 "
            "or later, in its usual build" + (", without a profiler" if SNAPSHOTS and sys.getprofile() else "")
        )


def _fault() -> str:
    """Why none can be trusted; nothing where they can."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "without its global interpreter lock it may put them off"
    tape = Tape()
    for held_by, dies in SHAPES.items():
        if not dies(tape) or _alive(tape):
            return f"a tensor outlived {held_by}"
    return ""


def _alive(tape: Tape) -> int:
    """How many storages have not died."""
    return sum(1 if event > 0 else -1 for event in tape.events)


def _made(tape: Tape) -> Tensor:
    return empty(tape, (1,), float32)


def _variable(tape: Tape) -> bool:
    t = _made(tape)
    t = _made(tape)
    dies = _alive(tape) == 1
    del t
    return dies and not _alive(tape)


def _argument(tape: Tape) -> bool:
    def take(t: Tensor) -> bool:
        del t
        return not _alive(tape)

    return take(_made(tape))


def _arguments(tape: Tape) -> bool:
    def take(*tensors: Tensor) -> int:
        return len(tensors)

    return take(*[_made(tape), _made(tape)]) == 2 and not _alive(tape)


def _elements(tape: Tape) -> bool:
    items, named = [_made(tape), _made(tape)], {0: _made(tape)}
    named[0] = items.pop()
    items[0] = named.pop(0)
    return _alive(tape) == 1


def _comprehension(tape: Tape) -> bool:
    return sum([t.nbytes for t in [_made(tape), _made(tape)]]) > 0 and not _alive(tape)


def _closure(tape: Tape) -> bool:
    def make() -> Callable[[], int]:
        t = _made(tape)
        return lambda: t.nbytes

    held = make()
    return held() > 0 and _alive(tape) == 1


def _exception(tape: Tape) -> bool:
    def fail() -> None:
        t = _made(tape)
        raise LookupError(t.nbytes)

    with suppress(LookupError):
        fail()
    return not _alive(tape)


def _others(tape: Tape) -> bool:
    """What backward asks: whether nothing but a buffer refers to a gradient."""
    buffer = {t: t.detach() for t in [_made(tape)]}
    (leaf,) = buffer
    beside = buffer[leaf]
    seen = [is_alone(buffer, leaf), can_add_in_place(buffer, leaf)]
    del beside, leaf
    free = {0: _made(tape)}
    return [*seen, can_add_in_place(free, 0)] == [False, False, True]


SHAPES: dict[str, Callable[[Tape], bool]] = {
    "a variable that got another value": _variable,
    "the function that it was handed to": _argument,
    "a call that it was an argument of": _arguments,
    "the list or dictionary that it was taken from": _elements,
    "a comprehension's variable": _comprehension,
    "the function that had closed over it": _closure,
    "the exception that passed its frame": _exception,
    "all else that referred to it": _others,
}
"""Whether tensors die as they should, by what holds them; none is left when it returns."""
