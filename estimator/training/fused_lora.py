"""LoRA over quantized layers in one autograd function, as Unsloth and fms-acceleration's "fast kernels" run it.

fms-acceleration, plugins/fused-ops-and-kernels, fused_ops/unsloth_lora (bnb and gptq): `LoRA_QKV` for the query, key and value
layers of an attention, `LoRA_W` for a layer by itself. Dropped inputs are saved instead of masks; the input's gradient is
written over the input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from estimator.contract.job import Training
from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, empty, like, moved, unary
from estimator.tape.views import contiguous

TOGETHER = ("q_proj", "k_proj", "v_proj")
"""Layers that one function runs, if all of them are adapted."""
HAVE_KERNELS = (*TOGETHER, "o_proj", "gate_proj", "up_proj", "down_proj")
"""Layers that have such a function; others, as those of GPT-BigCode and of Mixtral's experts, have none (models/*.py)."""


def ignores_adapters(training: Training) -> bool:
    """Whether FSDP leaves adapters out, whole on every rank, as it cannot gather what a fused function reads.

    Their gradients are averaged in place (fused-ops-and-kernels, utils.py, `lora_adapters_switch_ddp_from_fsdp`).
    """
    return training.implementation == "fast-kernels" and training.quantization is not None


@dataclass(frozen=True, slots=True)
class Adapted:
    """A quantized layer of `shape` [out, in] with its adapter; `unpack` makes the weight in a type."""

    shape: Shape
    unpack: Callable[[DType], Tensor]
    lora_a: Tensor
    lora_b: Tensor


@dataclass
class Group:
    """Adapted layers with the same input: the first that is called runs all of them, the others fetch their results."""

    dropout: float
    members: list[Adapted] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)

    def layer(self, member: Adapted) -> Callable[[Tensor], Tensor]:
        """The module of one of them. They are called in the order in which they were made."""
        self.members.append(member)

        def run(x: Tensor) -> Tensor:
            if not self.results:
                self.results = fused_lora(x, self.members, self.dropout)
            return self.results.pop(0)

        return run


def fused_lora(x: Tensor, layers: list[Adapted], dropout: float) -> list[Tensor]:
    """The results of adapted layers on x [batch, tokens, width]; those of several share one function."""
    rows, alone = x.numel // x.shape[-1], len(layers) == 1

    def backward(*given: Tensor) -> list[Gradient]:
        gradients, x, dropped = given[: len(layers)], given[len(layers)], given[len(layers) + 1 :]
        flat = [contiguous(g) for g in gradients]
        results: list[Gradient] = []
        for layer in layers:
            results += [like("mm", t) for t in (layer.lora_a, layer.lora_b)]
            _narrow_products(x, rows, layer, 2)
        into = empty(x.tape, x.shape, x.dtype, "mm") if alone else x
        for i, (layer, g, kept) in enumerate(zip(layers, flat, dropped, strict=True)):
            weight = layer.unpack(x.dtype)
            product = None if i == 0 else _product(g, x.shape)
            _narrow_products(x, rows, layer, 1)
            if product is not None:
                moved("add_", into, product, into)
            x.tape.multiply(rows, layer.shape[0], layer.shape[1], x.dtype)
            del weight, product
            used = unary("ne", kept, dtypes.bool_)
            update = _product(g, x.shape)
            masked = unary("mul", update)
            moved("add_", into, masked, into)
            del used, update, masked
        return [into, *results]

    inputs = [x, *(t for layer in layers for t in (layer.lora_a, layer.lora_b))]
    outs, dropped = [], []
    for layer in layers:
        weight = layer.unpack(x.dtype)
        out = empty(x.tape, (*x.shape[:-1], layer.shape[0]), x.dtype, "mm")
        x.tape.multiply(rows, layer.shape[0], layer.shape[1], x.dtype)
        del weight
        kept = x.detach()
        if dropout:
            kept = unary("native_dropout", x)
            mask = unary("native_dropout", x, dtypes.bool_)
            del mask
        down = empty(x.tape, (rows, layer.lora_a.shape[0]), x.dtype, "mm")
        up = to(layer.lora_b.detach(), x.dtype)
        update = empty(x.tape, out.shape, x.dtype, "mm")
        _narrow_products(x, rows, layer, 1)
        moved("add_", out, update, out)
        del down, up, update
        outs.append(out)
        dropped.append(kept)
        del out, kept
    node = record("FusedLora", inputs, (x, *dropped), backward, outputs=len(layers))
    for i, out in enumerate(outs):
        attach(node, out).output_nr = i
    return outs


def _narrow_products(x: Tensor, rows: int, layer: Adapted, times: int) -> None:
    """The two products of an adapter's matrices with `rows` rows, `times` over: forward, for its own gradients, or for the
    input's."""
    (outputs, inputs), rank = layer.shape, layer.lora_a.shape[0]
    for _ in range(times):
        x.tape.multiply(rows, rank, inputs, x.dtype)
        x.tape.multiply(rows, outputs, rank, x.dtype)


def _product(g: Tensor, shape: Shape) -> Tensor:
    return empty(g.tape, shape, g.dtype, "mm")
