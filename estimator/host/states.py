"""Bytes of what an optimizer keeps, of the whole job, as a checkpoint holds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from estimator.contract.job import Job
from estimator.families.build import Builder
from estimator.families.parameter import Parameter
from estimator.host.weights import saved_dtype
from estimator.parallel.strategies import strategy_of
from estimator.tape.tape import Storage
from estimator.tape.tensor import Tensor
from estimator.training.optimizers import optimizer
from estimator.training.overrides import parts
from estimator.training.recipes import recipe


def kept(job: Job, build: Builder) -> Iterator[tuple[Parameter, list[int]]]:
    """Each parameter of the model and the bytes of the optimizer's tensors for it, in one layer: its states, and the float32
    copy that DeepSpeed and Megatron keep; no bytes for frozen parameters. Counts of steps are left out."""
    names = build.layers_matrices, frozenset(f"{name}.weight" for name in build.embeddings)
    found, strategy = optimizer(job.training, *names), strategy_of(job)
    precision = recipe(job.training.precision, strategy, job.training.implementation)
    copies = parts(precision, strategy)["master_weights"] if precision else None
    for p in build.parameters:
        if not p.trainable:
            yield p, []
            continue
        shape, dtype = build.sharding.full_shape(p), copies or saved_dtype(build, p)
        whole = replace(p, local=Tensor(Storage(build.tape, 0, p.name, filled=False), shape, dtype))
        states = [prod(shape) * form.itemsize for shape, form in found.kept(whole) if shape]
        paged = [nbytes] if (nbytes := found.paged(whole)) else []
        yield p, [*states, *paged, *([prod(shape) * copies.itemsize] if copies else [])]


def states_bytes(job: Job, build: Builder) -> int:
    """All together, of all layers."""
    return sum(p.times * sum(states) for p, states in kept(job, build))
