"""Linear layers that a server's kernels multiply with as they are stored: nothing is unpacked.

vLLM's kernels for GPTQ, AWQ, fp8 and NVFP4 unpack a tile at a time in registers (csrc/quantization, Marlin and CUTLASS).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.quantization.formats import FORMATS, parts
from estimator.tape.layout import Shape
from estimator.tape.tape import PACKED
from estimator.tape.tensor import Tensor, empty


@dataclass(frozen=True, slots=True)
class Packed:
    """Weights in a format, to be served. `group`: weights that share a scale, where it is not the format's usual number."""

    name: str
    group: int | None = None
    routers: bool = False

    def linear(self, build: Builder, name: str, weight: Shape, bias: bool) -> Module:
        codes, *others = parts(self.name, weight, self.group)
        held = [build.parameter(f"{name}.{codes.name}", codes.shape, codes.dtype, count=prod(weight))]
        held += [build.buffer(f"{name}.{part.name}", part.shape, part.dtype) for part in others]
        if bias:
            held.append(build.parameter(name + ".bias", weight[:1], FORMATS[self.name].bias))
        return _Fused(held, weight[0], f"{self.name}{PACKED}")


class _Fused:
    def __init__(self, held: list[Tensor], outputs: int, operation: str):
        self.held, self.outputs, self.operation = held, outputs, operation
        self.nbytes = sum(part.nbytes for part in held)

    def __call__(self, x: Tensor) -> Tensor:
        inputs = x.shape[-1]
        m, n = x.numel // inputs, self.outputs
        nbytes = self.nbytes + m * (inputs + n) * x.dtype.itemsize
        x.tape.compute(self.operation, 2 * m * n * inputs, nbytes, ((1, m, n, inputs), x.dtype), x.storage.index)
        return empty(x.tape, (*x.shape[:-1], n), x.dtype, "quantized_mm")
