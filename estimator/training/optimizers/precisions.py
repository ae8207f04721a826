"""Adam whose moments have a type of their own, whatever the weights have."""

from __future__ import annotations

from estimator.families.multi_tensor import Lists
from estimator.families.parameter import Parameter
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.tape import Form, Tape
from estimator.training.optimizers.base import SCALAR, Optimizer, like, neighbours


def any_precision(name: str, dtype: DType) -> Optimizer:
    """`AnyPrecisionAdamW`, without Kahan's summation (llama-cookbook 0.0.5, policies/anyprecision_optimizer.py; torchdistx)."""

    def step(tape: Tape, parameters: list[Parameter]) -> None:
        """`centered_variance`, a quotient of a root, is held until the next parameter's is there."""
        centered = None
        for p in neighbours(parameters):
            root = like(p, "sqrt", dtype)
            quotient = like(p, "div", dtype)
            del root
            centered = quotient
            del quotient
        del centered

    return Optimizer(name, lambda p: [(p.local.shape, dtype)] * 2, step)


def transformer_engine(name: str, dtype: DType) -> Optimizer:
    """`FusedAdam` without master weights (Transformer Engine 2, pytorch/optimizers/fused_adam.py).

    Its kernel takes moments in float32 alone: others are copied so, those of all parameters at once, and copied back after it.
    """
    wide = dtype is dtypes.float32
    scale: Form = ((1,), dtypes.float32)

    def kept(p: Parameter) -> list[Form]:
        return [(p.local.shape, dtype)] * 2 + ([] if wide else [scale] * 2)

    def shared(parameters: list[Parameter]) -> list[Form]:
        """What says that numbers overflowed, and the largest number of float16."""
        return [SCALAR, *([scale] if dtype is dtypes.float16 else [])]

    def step(tape: Tape, parameters: list[Parameter]) -> None:
        if wide:
            return
        lists = Lists(tape)
        copies = [lists.new("float", parameters, dtype=dtypes.float32) for _ in range(2)]
        for p in neighbours(parameters) if dtype is dtypes.bfloat16 else ():
            narrow = like(p, "bfloat16", dtype)
            del narrow
        for held in copies:
            lists.free(held)

    remark = "" if wide else "FusedAdam copies all moments to float32 in each step: 8 bytes for each trained number, for a moment"
    return Optimizer(name, kept, step, shared, remark=remark)
