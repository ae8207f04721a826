"""Who wrote the kernels of a model: transformers' eager modules, or fused ones in their place.

A model's definition stays one; the builder takes the variant of each module from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from estimator.families.losses import CausalLoss, fast_linear_loss, liger_loss
from estimator.families.modules import ACTIVATIONS, Float8Linear, Module, RMSNorm, rotate
from estimator.tape import fused, normalization
from estimator.tape.complex import rotate as complex_rotate
from estimator.tape.cut import cut_cross_entropy
from estimator.tape.float8 import ALIGNMENT, SCALINGS
from estimator.tape.pointwise import mul
from estimator.tape.tensor import Tensor
from estimator.tape.views import repeat

Gated = Callable[[Tensor, Module, Module], Tensor]
"""(x, gate projection, up projection) -> activation(gate(x)) * up(x)."""
LinearKind = Callable[[Tensor, Tensor | None], Module]
"""A linear layer of a weight [out, in] and a bias."""


Matched = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Queries, keys and values -> the same."""


def copied(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each copied to the same number of sequences although the numbers agree: adapters 1.3,
    composition.py, `match_attn_matrices_for_parallel`."""
    queries = repeat(q, 1)
    keys = repeat(k, 1)
    return queries, keys, repeat(v, 1)


def eager_gated(activation: str) -> Gated:
    """activation(gate(x)) * up(x) in two operations."""
    act = ACTIVATIONS[activation]
    return lambda x, gate, up: mul(act(gate(x)), up(x))


def fused_gated(activation: str) -> Gated:
    """silu(gate(x)) * up(x) in one kernel; other activations take two operations."""
    if activation != "silu":
        return eager_gated(activation)
    return lambda x, gate, up: fused.silu_mul(gate(x), up(x))


@dataclass(frozen=True, slots=True)
class Kernels:
    """The variants of one implementation."""

    rms_norm: Callable[[Tensor], Module] = RMSNorm
    rotate: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = rotate
    gated: Callable[[str], Gated] = eager_gated
    loss: CausalLoss = field(default_factory=CausalLoss)
    release: str = "5"
    """The release of transformers whose modules they stand in."""
    matched: Matched = lambda q, k, v: (q, k, v)
    """What attention does with its inputs first."""
    linear: Callable[[LinearKind, int, int], LinearKind] = lambda kind, inputs, outputs: kind
    """What stands in a linear layer's place."""
    efficient: bool = True
    """Whether torch may choose the memory-efficient kernel for attention."""


EAGER = Kernels()


def _fused_norm(weight_gradient: bool) -> Callable[[Tensor], Module]:
    return lambda weight: lambda x: fused.rms_norm(x, weight, weight_gradient)


def _norm_of_torch(weight: Tensor) -> Module:
    return lambda x: normalization.rms_norm(x, weight)


SERVER = Kernels(_fused_norm(weight_gradient=False), fused.rotate, fused_gated)
"""Kernels of a serving engine: norms, rotary embedding and SwiGLU in a kernel each."""

_LOSSES = {
    "5": CausalLoss(),
    "4.57": CausalLoss(),
    "4.48": CausalLoss(shifts_logits=True),
    "4.45": CausalLoss(shifts_logits=True, upcasts_first=True),
}
"""By release of transformers: 5, what AdapterHub's library runs with, 4.46 to 4.49, and before."""
_FUSED_LOSS = {"transformers": liger_loss, "fast-kernels": fast_linear_loss, "liger": liger_loss}


def in_float8(found: Kernels, recipe: str) -> Kernels:
    """With linear layers of torchao's, where both sizes are such as its products take; others stay as they are."""
    scaling = SCALINGS[recipe]

    def linear(kind: LinearKind, inputs: int, outputs: int) -> LinearKind:
        if inputs % ALIGNMENT or outputs % ALIGNMENT:
            return kind
        return lambda weight, bias: Float8Linear(weight, bias, scaling)

    return replace(found, linear=linear)


def kernels(implementation: str, loss: str, release: str) -> Kernels:
    """The kernels of an `implementation`, with its own loss (`eager`) or with linear layer and loss in one (`fused`, and Apple's
    `cut`)."""
    usual = _LOSSES[release]
    if implementation == "fast-kernels":
        own = replace(usual, shifts_logits=True, entropy=fused.cross_entropy)
        found = Kernels(_fused_norm(weight_gradient=False), fused.rotate, loss=own)
    elif implementation == "liger":
        found = Kernels(_fused_norm(weight_gradient=True), fused.rotate, fused_gated, usual)
    elif implementation == "torchtitan":
        return Kernels(_norm_of_torch, complex_rotate, efficient=False)
    else:
        found = Kernels(loss=usual)
    found = replace(found, release=release, matched=copied) if release == "4.57" else replace(found, release=release)
    if loss == "shifted":
        return replace(found, loss=replace(found.loss, shifts_logits=True))
    if loss == "flash":
        return replace(found, loss=replace(found.loss, widens=False, entropy=fused.flash_cross_entropy))
    if loss == "chunked":
        return replace(found, loss=replace(found.loss, in_chunks=True))
    if loss == "cut":
        return replace(found, loss=replace(found.loss, fused=cut_cross_entropy))
    if loss == "fused":
        return replace(found, loss=replace(found.loss, fused=_FUSED_LOSS[implementation]))
    return found
