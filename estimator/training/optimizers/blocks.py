"""States in blocks of few bits, each with a scale of its own, and paged ones: the optimizers of bitsandbytes and of torchao."""

from __future__ import annotations

from estimator.families.parameter import Parameter
from estimator.tape import dtypes
from estimator.tape.tape import Form, Tape
from estimator.tape.tensor import empty
from estimator.training.optimizers.base import Optimizer, in_place, like, neighbours

SMALLEST = 4096
"""Elements from which on states are quantized (`min_8bit_size`; torchao follows it)."""
BLOCK = 256
"""Elements with one scale, a float32 (`blocksize`, bitsandbytes/optim/optimizer.py; torchao's 8-bit and fp8 `block_size`)."""
BLOCK_4BIT = 128
CODES = 256
"""Values that 8 bits can stand for: a table of them is kept in float32."""
PAGED = 100_000
"""Elements from which on paged states lie in managed memory (`get_state_buffer`)."""

MOMENTS = {"adamw": 2, "adam": 2, "sgd": 1, "sgd-momentum": 1, "adagrad": 1, "rmsprop": 1, "lion": 1, "lamb": 2, "ademamix": 3}
"""How many tensors of a parameter's size bitsandbytes keeps; AdEMAMix's first is two in one."""
WITHOUT_BF16 = ("sgd", "sgd-momentum", "adagrad", "rmsprop")
"""Optimizers whose 32-bit kernels take no bfloat16 gradients (`str2optimizer32bit`, bitsandbytes/backends/cuda/ops.py)."""


def bitsandbytes(name: str, wide: frozenset[str]) -> Optimizer:
    """An optimizer of bitsandbytes 0.50 by its job's name: `paged-` before it, `-8bit` after it.

    `wide`: names of parameters whose states stay in 32 bits (`GlobalOptimManager`, which the Trainer tells of embeddings).
    32-bit states are float32 whatever the weights are; updates are in place (bitsandbytes/optim/optimizer.py, ademamix.py).
    """
    paged, eight = name.startswith("paged-"), name.endswith("-8bit")
    rule = name.removeprefix("paged-").removesuffix("-8bit")
    moments = MOMENTS[rule]
    shapes = (2, 1) if rule == "ademamix" else (1,) * moments

    def quantized(p: Parameter) -> bool:
        return eight and p.local.numel >= SMALLEST and p.name not in wide

    def buffers(p: Parameter) -> list[Form]:
        dtype = dtypes.uint8 if quantized(p) else dtypes.float32
        return [((n * p.local.numel,), dtype) for n in shapes]

    def scales(p: Parameter) -> list[Form]:
        if not quantized(p):
            return []
        return [((n * -(-p.local.numel // BLOCK),), dtypes.float32) for n in shapes]

    def off_the_allocator(p: Parameter) -> bool:
        return paged and p.local.numel >= PAGED

    def kept(p: Parameter) -> list[Form]:
        norm: list[Form] = [((1,), dtypes.float32)] if rule == "lamb" else []
        return [*([] if off_the_allocator(p) else buffers(p)), *scales(p), *norm]

    def tables(parameters: list[Parameter]) -> list[Form]:
        """One for signed states, and one for second moments, which have no sign (`name2qmap`)."""
        return [((CODES,), dtypes.float32)] * len(shapes) if any(map(quantized, parameters)) else []

    def managed(p: Parameter) -> int:
        return sum(shape[0] * dtype.itemsize for shape, dtype in buffers(p)) if off_the_allocator(p) else 0

    return Optimizer(name, kept, _lamb if rule == "lamb" else in_place, tables, managed)


def _lamb(tape: Tape, parameters: list[Parameter]) -> None:
    """`optimizer_update_32bit` takes the norm of the weights in float32 (bitsandbytes/functional.py)."""
    for p in neighbours(parameters):
        copy = None if p.local.dtype is dtypes.float32 else like(p, "_to_copy", dtypes.float32)
        norm = empty(tape, (), dtypes.float32, "norm")
        del copy, norm


def torchao(name: str) -> Optimizer:
    """torchao 0.18's Adam and AdamW: codes, scales and a table of values of their own for each of the two moments.

    What is small, or not a whole number of blocks, is as the weight is (torchao/optim/adam.py, `_new_buffer`; subclass_8bit.py,
    subclass_4bit.py, subclass_fp8.py). The step is compiled for each parameter; its kernels are taken to work in place.
    """
    bits = name.rpartition("-")[2]
    block = BLOCK_4BIT if bits == "4bit" else BLOCK

    def moment(p: Parameter) -> list[Form]:
        count = p.local.numel
        if count < SMALLEST or count % block:
            return [(p.local.shape, p.local.dtype)]
        codes: Form = ((count // 2 if bits == "4bit" else count,), dtypes.uint8)
        table = {"8bit": [((CODES,), dtypes.float32)], "4bit": [((16,), dtypes.float32)], "fp8": []}[bits]
        return [codes, ((count // block,), dtypes.float32), *table]

    def kept(p: Parameter) -> list[Form]:
        return [*moment(p), *moment(p)]

    return Optimizer(name, kept, in_place, remark="torchao compiles its step: the kernels are taken to need no temporaries")
