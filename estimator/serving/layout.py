"""A tape without operations, for engines that set everything aside before they serve: weights, the cache, and one pass."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from estimator.contract.job import Serving
from estimator.families import parameters
from estimator.families.build import Builder
from estimator.families.spec import ModelSpec
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.gpu import Gpu
from estimator.tape.tape import KV_CACHE, PARAMETER, Tape
from estimator.tape.tensor import empty

T = TypeVar("T")


class Lately(Generic[T]):
    """What was worked out last of a job's settings and a model, for whoever asks of the same objects next."""

    def __init__(self) -> None:
        self._last: tuple[Serving, ModelSpec, object, Gpu, T] | None = None

    def keep(self, found: T, serving: Serving, spec: ModelSpec, ranks: object, gpu: Gpu) -> None:
        self._last = serving, spec, ranks, gpu, found

    def known(self, serving: Serving, spec: ModelSpec, ranks: object, gpu: Gpu) -> T | None:
        """None where it is of others."""
        if self._last is None:
            return None
        asked, model, place, card, found = self._last
        return found if asked is serving and model is spec and (place, card) == (ranks, gpu) else None


class Passing(NamedTuple):
    """What is held as long as a prompt is read: its name, what it counts as, and its bytes."""

    name: str
    component: str
    nbytes: int


def laid_out(spec: ModelSpec, plain: DType, gpu: Gpu, weights: int, cache: int, passing: Passing) -> Builder:
    """What one rank's GPU holds, in bytes."""
    tape = Tape(gpu, step=1)
    build = Builder(tape, plain, served=True, parameters=list(parameters(spec)))
    tape.begin("load")
    alive = []
    for component, nbytes, name in ((PARAMETER, weights, "weights"), (KV_CACHE, cache, "kv_cache")):
        with tape.counting(component):
            alive.append(empty(tape, (nbytes,), dtypes.uint8, name))
    tape.begin("prefill")
    if passing.nbytes:
        with tape.counting(passing.component):
            alive.append(empty(tape, (passing.nbytes,), dtypes.uint8, passing.name))
    tape.begin("decode")
    del alive[2:]
    tape.finish()
    del alive
    return build
