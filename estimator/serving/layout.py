"""A tape without operations, for engines that set everything aside before they serve: weights, the cache, and one pass."""

from __future__ import annotations

from typing import NamedTuple

from estimator.families import build_model, heads
from estimator.families.build import Builder
from estimator.families.spec import ModelSpec
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.gpu import Gpu
from estimator.tape.tape import KV_CACHE, PARAMETER, Tape
from estimator.tape.tensor import empty


class Passing(NamedTuple):
    """What is held as long as a prompt is read: its name, what it counts as, and its bytes."""

    name: str
    component: str
    nbytes: int


def laid_out(spec: ModelSpec, plain: DType, gpu: Gpu, weights: int, cache: int, passing: Passing) -> Builder:
    """What one rank's GPU holds, in bytes."""
    tape, counted = Tape(gpu, step=1), Builder(Tape(), plain, served=True)
    build_model(spec, counted, next(iter(heads(spec.model_type))))
    build = Builder(tape, plain, served=True, parameters=counted.parameters)
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
