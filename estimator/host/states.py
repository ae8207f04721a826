"""Bytes of what an optimizer keeps, of the whole job, as a checkpoint holds it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from estimator.families.build import Builder
from estimator.host.weights import saved_dtype
from estimator.job import Job
from estimator.tape.tape import Storage
from estimator.tape.tensor import Tensor
from estimator.training.optimizers import optimizer
from estimator.training.overrides import parts
from estimator.training.recipes import recipe


def states_bytes(job: Job, build: Builder) -> int:
    """States of every trained parameter, and the float32 copies that DeepSpeed and Megatron keep of it; counts of steps are left
    out."""
    names = (frozenset(f"{name}.weight" for name in names) for names in (build.linears, build.embeddings))
    found, strategy = optimizer(job.training, *names), job.parallelism.strategy or "none"
    precision = recipe(job.training.precision, strategy)
    copies = parts(precision, strategy)["master_weights"] if precision else None
    total = 0
    for p in build.parameters:
        if p.trainable:
            dtype = copies or saved_dtype(build, p)
            whole = replace(p, local=Tensor(Storage(build.tape, 0, p.name, filled=False), p.tensor.shape, dtype))
            kept = sum(prod(shape) * form.itemsize for shape, form in found.kept(whole) if shape) + found.paged(whole)
            total += p.times * (kept + (p.tensor.numel * copies.itemsize if copies else 0))
    return total
