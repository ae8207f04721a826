"""Precision recipes: the types of weights, of arithmetic and of what is reduced, by the names that Lightning uses."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.parallel.strategies import Strategy
from estimator.tape import dtypes
from estimator.tape.dtypes import DType


@dataclass(frozen=True, slots=True)
class Recipe:
    """`weights`: what parameters, gradients and optimizer states are held in. `autocast`: what matrix products are cast to.

    `gathered` and `reduced`: FSDP's mixed-precision policy, in place of autocast. `scaled`: the loss is scaled by a `GradScaler`.
    `summed`: what gradients are added up in, in a buffer in addition to float32 copies of the weights, as Megatron does.
    """

    weights: DType
    autocast: DType | None = None
    gathered: DType | None = None
    reduced: DType | None = None
    scaled: bool = False
    summed: DType | None = None

    @property
    def compute(self) -> DType:
        """What matrix products run in."""
        return self.autocast or self.gathered or self.weights


TRUE = {
    "32-true": Recipe(dtypes.float32),
    "bf16-true": Recipe(dtypes.bfloat16),
    "16-true": Recipe(dtypes.float16),
}
"""One type for everything."""
MIXED = {"bf16-mixed": dtypes.bfloat16, "16-mixed": dtypes.float16}
"""Half precision for arithmetic, float32 for what is kept."""
DEEPSPEED = {"deepspeed-bf16": dtypes.bfloat16, "deepspeed-fp16": dtypes.float16}
"""DeepSpeed's own modes, for ZeRO: half precision, and a float32 copy of what a rank optimises."""
MEGATRON = {
    "megatron-bf16": Recipe(dtypes.bfloat16, summed=dtypes.float32),
    "megatron-fp16": Recipe(dtypes.float16, summed=dtypes.float16),
}
"""Megatron's modes: bf16 weights come with float32 gradients (`accumulate_allreduce_grads_in_fp32`), float16 ones do not."""


def recipe(precision: str, strategy: Strategy, implementation: str = "transformers") -> Recipe | None:
    """What a precision means under a data-parallel strategy; None where this version has no model of it.

    `bf16-mixed` is autocast over float32 weights; under FSDP it is the policy that gathers bf16 and reduces float32;
    under ZeRO it is DeepSpeed's bf16 mode, as in Accelerate and Lightning: bf16 weights, and a float32 copy of them in parts.
    `16-mixed` is the same with float16, and a scaled loss. (DeepSpeed's scale is a number of Python's: its float32 gradients
    are divided by it in place.) torchtitan sets bf16 arithmetic under `training.dtype: bfloat16`, too: for autocast on one
    GPU, and for a policy that reduces float32 where it shards (torchtitan/distributed/utils.py, `maybe_enable_amp`).
    """
    if implementation == "torchtitan" and precision == "bf16-true":
        half = dtypes.bfloat16
        return Recipe(half, autocast=half) if strategy.alone else Recipe(half, gathered=half, reduced=dtypes.float32)
    zero = strategy.mixed == "deepspeed"
    if precision in TRUE:
        return TRUE[precision] if not zero or precision == "32-true" else None
    if implementation == "megatron" and precision == "deepspeed-bf16":
        return MEGATRON["megatron-bf16"] if strategy.stage == 1 else None
    if precision in DEEPSPEED:
        return Recipe(DEEPSPEED[precision]) if zero else None
    if precision in MEGATRON:
        return MEGATRON[precision] if "megatron_precisions" in strategy.models else None
    if precision not in MIXED:
        return None
    half = MIXED[precision]
    if zero:
        return Recipe(half)
    scaled = half is dtypes.float16
    if strategy.mixed == "policy":
        return Recipe(dtypes.float32, gathered=half, reduced=dtypes.float32, scaled=scaled)
    return Recipe(dtypes.float32, autocast=half, scaled=scaled)
