"""Operations of llama.cpp's graphs: what each makes of tensors, and where it has to run.

After `build_norm`, `build_lora_mm` and `ggml_view_*` as src/llama-graph.cpp uses them (October 2026).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from estimator.serving.llamacpp.ggml import Tensor
from estimator.serving.llamacpp.shape import Shape

HALF, PLACE, NUMBER = 2, 8, 4
"""Bytes."""
Weight = Callable[[str, int | None], Tensor]
"""(name, layer) -> one of the model's tensors, and where it lies."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Where a model lies: `layers` says of each the GPU that has it, or the number of GPUs for the host.

    `forced`: whether a layer's norms run where the layer lies, which is so with all layers on GPUs, or in small batches.
    """

    layers: tuple[int, ...]
    gpus: int
    forced: bool


def given(shape: tuple[int, ...], width: int) -> Tensor:
    """An input of the graph; `width`: bytes of a number."""
    made = Tensor("none", shape, width=width)
    made.given = True
    return made


class Operations:
    """What the parts of a graph are built with."""

    def __init__(self, shape: Shape, devices: Devices, weight: Weight):
        self.shape, self.devices, self.weight = shape, devices, weight

    def op(self, name: str, shape: tuple[int, ...], *sources: Tensor) -> Tensor:
        """A tensor of its own."""
        return Tensor(name, shape, sources)

    def view(self, x: Tensor, shape: tuple[int, ...], dense: bool = True) -> Tensor:
        """Another view of a tensor's bytes, or of some of them."""
        return Tensor("view", shape, [x], root=x, dense=dense, span=x.span if prod(shape) * NUMBER == x.nbytes else None)

    def part(self, x: Tensor, shape: tuple[int, ...], rows: int) -> Tensor:
        """A part of each of its rows, with gaps between."""
        row, size = x.nbytes // rows, NUMBER * prod(shape) // rows
        return Tensor("view", shape, [x], root=x, dense=False, span=x.nbytes - row + size)

    def unlike(self, name: str, x: Tensor, *others: Tensor) -> Tensor:
        """A tensor of the shape of `x`, computed from it and others."""
        return Tensor(name, x.shape, [x, *others])

    def product(self, name: str, layer: int | None, width: int, x: Tensor) -> Tensor:
        """`x` through one of the model's matrices."""
        return self.op("mul_mat", (width, *x.shape[1:]), self.weight(name, layer), x)

    def biased(self, x: Tensor, name: str, layer: int, on: bool) -> Tensor:
        """With a bias, if there is one."""
        return self.unlike("add", x, self.weight(name, layer)) if on else x

    def norm(self, x: Tensor, name: str, layer: int | None, forced: bool = True, own: bool = True) -> Tensor:
        """Normalised; `forced`: named by its layer, so that it may have to run there, also where its weights are not the layer's
        `own`."""
        bias = self.shape.layer_norm and self.shape.norm_bias
        found = self.unlike("norm" if self.shape.layer_norm else "rms_norm", x)
        if not self.shape.norm_weight:
            return found
        if layer is not None and forced and self.devices.forced:
            found.backend = self.devices.layers[layer]
        whose = layer if own else None
        found = self.unlike("mul", found, self.weight(name, whose))
        return self.unlike("add", found, self.weight(f"{name}.bias", whose)) if bias else found
