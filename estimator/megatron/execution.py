"""How the parts of a layer run: what its products are in, and what is recomputed in backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from estimator.contract.job import CheckpointForm
from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.megatron.fp8 import Fp8
from estimator.megatron.fp8_linear import Fp8Grouped, Fp8Linear
from estimator.megatron.linear import ColumnLinear, Later, Norm, NormLinear, RowLinear, Split, grouped
from estimator.megatron.lora import Adapters
from estimator.tape import dtypes
from estimator.tape.layout import Shape
from estimator.tape.tensor import Tensor

CORE_ATTENTION, UP_PROJECTION, LAYER_NORM = "core_attn", "mla_up_proj", "layernorm"
MLP, MOE, MOE_ACTIVATION, SHARED_EXPERTS = "mlp", "moe", "moe_act", "shared_experts"
PARTS = (CORE_ATTENTION, MOE_ACTIVATION, LAYER_NORM, UP_PROJECTION, MLP, MOE, SHARED_EXPERTS)
"""What selective recomputation can be of (`--recompute-modules`)."""


def parts(asked: str | CheckpointForm) -> frozenset[str]:
    """What of each layer a job recomputes by itself: `selective` is attention's core (`--recompute-modules`)."""
    if asked == "selective":
        return frozenset({CORE_ATTENTION})
    return frozenset() if isinstance(asked, str) else frozenset(asked.modules or ())


@dataclass(frozen=True, slots=True)
class Execution:
    """`recomputed`: which of the parts are. `lora`: the adapters of all linear layers."""

    fp8: Fp8 | None = None
    recomputed: frozenset[str] = frozenset()
    lora: Adapters | None = None

    def weight(self, build: Builder, name: str, shape: Shape, active: int | None = None) -> Tensor:
        """A weight that a layer multiplies by."""
        kept = dtypes.float8_e4m3fn if self.fp8 is not None and self.fp8.kept else None
        return build.parameter(name, shape, kept, active=active)

    def norm_linear(self, build: Builder, gain: Norm, weight: Tensor, bias: Tensor | None, split: Split) -> Module:
        if self.lora is not None:
            return self.lora.norm_linear(build, _name(build, weight), gain, weight, split)
        if self.fp8 is None:
            return NormLinear(gain, weight, bias, split)
        return Fp8Linear(self.fp8, build, weight, bias, split, gain)

    def column(self, build: Builder, weight: Tensor, split: Split, of_norm: bool = False) -> Module:
        """`of_norm`: its input is a norm's result, saved as it is where that is discarded."""
        if self.lora is not None:
            return self.lora.column(build, _name(build, weight), weight, split)
        if self.fp8 is None:
            return ColumnLinear(weight, None, split)
        return Fp8Linear(self.fp8, build, weight, None, split, original=of_norm and LAYER_NORM in self.recomputed)

    def row(self, build: Builder, weight: Tensor, split: Split, of_attention: bool = False) -> Module:
        """`of_attention`: its input is attention's result, which that saves, too: saved as it is, unless scaling is delayed."""
        if self.lora is not None:
            return self.lora.row(build, _name(build, weight), weight, split)
        if self.fp8 is None:
            return RowLinear(weight, None, split)
        original = of_attention and self.fp8.recipe != "delayed"
        return Fp8Linear(self.fp8, build, weight, None, split, rows=True, original=original)

    def grouped(self, build: Builder, weights: Tensor, later: Later, of_activation: bool = False) -> Callable[[Tensor], Tensor]:
        """Experts' products; `of_activation`: of what their activation made, saved as it is where that is discarded."""
        if self.lora is not None:
            return self.lora.grouped(build, _name(build, weights), weights, later)
        if self.fp8 is None:
            return partial(grouped, weights=weights, later=later)
        return Fp8Grouped(self.fp8, build, weights, of_activation and MOE_ACTIVATION in self.recomputed)


def _name(build: Builder, weight: Tensor) -> str:
    """What the layer of a weight is called."""
    return next(p.name for p in build.parameters if p.tensor is weight).removesuffix(".weight")
