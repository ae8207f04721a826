"""What happens to gradients between backward and the optimizer: clipping by their norm, and being kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from estimator.families.multi_tensor import Lists
from estimator.families.parameter import Parameter
from estimator.parallel.tensor import sum_norms
from estimator.tape import dtypes
from estimator.tape.collectives import Group, all_reduced
from estimator.tape.pointwise import to
from estimator.tape.tape import GRADIENT, Tape
from estimator.tape.tensor import Tensor, empty, unary

Clip = Callable[[Tape, list[Parameter]], Tensor]
"""Clips gradients by their norm, and gives that."""

CHUNK = 65536
"""Elements that one block of CUDA's `_foreach_norm` reduces (`kChunkSize`, aten/src/ATen/native/cuda/MultiTensorApply.cuh)."""


def kept(tape: Tape, parameters: list[Parameter]) -> None:
    """Gradients that `zero_grad(set_to_none=False)` left from the step before."""
    with tape.counting(GRADIENT):
        for p in parameters:
            tape.enter(p.slot)
            p.tensor.grad = empty(tape, p.tensor.shape, p.tensor.dtype, "zero_")
    tape.enter(None)


def clip(tape: Tape, parameters: list[Parameter]) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_`: a norm for each gradient, then one of all; scaling is in place.

    torch/nn/utils/clip_grad.py, and for the partial norms of each chunk aten/src/ATen/native/cuda/ForeachReduceOp.cu.
    """
    norms = []
    for _, group in groupby(sorted(parameters, key=_dtype_name), key=_dtype_name):
        members = list(group)
        longest = -(-max(p.local.numel for p in members) // CHUNK)
        partial = empty(tape, (longest * sum(_times(p) for p in members),), dtypes.float32, "_foreach_norm")
        for p in members:
            tape.enter(p.slot)
            norms.append((p, empty(tape, (), p.tensor.dtype, "_foreach_norm")))
            _read_and_scaled(tape, p)
        tape.enter(None)
        del partial
    stacked = empty(tape, (sum(_times(p) for p in parameters),), parameters[0].tensor.dtype, "stack")
    total = empty(tape, (), stacked.dtype, "linalg_vector_norm")
    del stacked
    for p in reversed(parameters):
        tape.enter(p.slot)
        norms.pop()
    tape.enter(None)
    scale = _share(total)
    clamped = unary("clamp", scale)
    del scale, clamped
    return total


def _share(norm: Tensor) -> Tensor:
    """What gradients are multiplied by, `max_norm / (norm + 1e-6)`: the sum lives until that is there (`Tensor.__rdiv__`)."""
    added = unary("add", norm)
    return unary("mul", unary("reciprocal", added))


def _read_and_scaled(tape: Tape, p: Parameter) -> None:
    """A gradient is read for its norm, and read and written to be scaled."""
    tape.compute("_foreach_norm", 0, p.local.nbytes)
    tape.compute("_foreach_mul_", 0, 2 * p.local.nbytes)


def clip_sharded(zero: Tensor, tape: Tape, parameters: list[Parameter]) -> Tensor:
    """`FullyShardedDataParallel.clip_grad_norm_`: a norm in float32 for each part of a gradient, then one of all.

    torch/distributed/fsdp/fully_sharded_data_parallel.py, `_get_grad_norm`. `zero`: a number that its first call makes and that
    stays (`_zero_scalar`).
    """
    del zero
    norms = []
    for p in parameters:
        tape.enter(p.slot)
        norms.append(empty(tape, (), dtypes.float32, "linalg_vector_norm"))
        _read_and_scaled(tape, p)
    tape.enter(None)
    stacked = empty(tape, (sum(_times(p) for p in parameters),), dtypes.float32, "stack")
    for p in reversed(parameters):
        tape.enter(p.slot)
        norms.pop()
    tape.enter(None)
    local = empty(tape, (), dtypes.float32, "linalg_vector_norm")
    del stacked
    total = unary("pow", local)
    total = unary("pow", total)
    scale = _share(total)
    clamped = unary("clamp", scale)
    del scale
    cast = to(clamped, parameters[0].local.dtype)
    del cast, clamped, local
    return total


def clip_distributed(
    groups: Sequence[Group],
    unplaced: Callable[[Parameter], bool],
    alike: Callable[[Parameter], bool],
    tape: Tape,
    parameters: list[Parameter],
) -> Tensor:
    """`clip_grad_norm_` of DTensors on a mesh of these groups: a norm of what this rank has of each gradient; of what all
    ranks of the last group have `alike`, a share. What is `unplaced` is placed for it.

    Norms of ranks are squared and summed, and the root is taken (torch/distributed/tensor/_ops/_math_ops.py, `_NormPartial`).
    """
    lists = Lists(tape)
    unsplit = [p for p in parameters if unplaced(p)]
    summed = lists.new("all_reduce", [p for p in unsplit if p.tensor is p.local])
    sum_norms(tape, groups[-1], unsplit)
    count = sum(p.times for p in parameters)
    longest = -(-max((p.tensor if unplaced(p) else p.local).numel for p in parameters) // CHUNK)
    partial = empty(tape, (longest * count,), dtypes.float32, "_foreach_norm")
    norms = lists.new("_foreach_norm", parameters, lambda _: ())
    for p in parameters:
        tape.enter(p.slot)
        _read_and_scaled(tape, p)
    tape.enter(None)
    del partial
    lists.free(summed)
    shares = lists.new("div", [p for p in parameters if alike(p)], lambda _: ())
    stacked = empty(tape, (count,), parameters[0].local.dtype, "stack")
    lists.free(shares)
    total = stacked
    for group in groups:
        squared = unary("pow", total)
        reduced = all_reduced(squared, group)
        root = unary("pow", reduced)
        del squared, reduced
        total = root
        del root
    norm = empty(tape, (), total.dtype, "linalg_vector_norm")
    del stacked, total
    lists.free(norms)
    scale = _share(norm)
    clamped = unary("clamp", scale)
    del scale, clamped
    return norm


def keeping(clip: Clip, held: list[Tensor]) -> Clip:
    """A clip that also appends the norm to `held`, which keeps it alive."""

    def run(tape: Tape, parameters: list[Parameter]) -> Tensor:
        norm = clip(tape, parameters)
        held.append(norm)
        return norm

    return run


def _times(parameter: Parameter) -> int:
    """How many such parameters the model has."""
    return parameter.slot.total if parameter.slot else 1


def _dtype_name(parameter: Parameter) -> str:
    return parameter.tensor.dtype.name
