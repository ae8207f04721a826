"""What a whole model's weights take in a format, as its checkpoint has them: codes, scales, and what stays as it is."""

from __future__ import annotations

from math import prod

from estimator.families import built
from estimator.families.build import Builder, within
from estimator.families.parameter import Parameter
from estimator.families.spec import ModelSpec
from estimator.quantization.formats import FORMATS, Format, parts

WHOLE = 2
"""Bytes of a number that is not quantized: checkpoints have them in half precision."""
ROUTERS = ("gate", "router", "shared_expert_gate")


Mixed = tuple[tuple[str, tuple[str, ...]], ...]
"""Other formats, each with parts of the names of layers that are stored in it."""


def stored_bytes(spec: ModelSpec, name: str, group: int | None = None, whole: tuple[str, ...] = (), mixed: Mixed = ()) -> int:
    """Bytes of a checkpoint in a format. `whole`: parts of the names of layers that are not quantized; `mixed`: of those in other
    formats."""
    return built_bytes(spec, built(spec), name, group, whole, mixed)


def built_bytes(
    spec: ModelSpec, build: Builder, name: str, group: int | None = None, whole: tuple[str, ...] = (), mixed: Mixed = ()
) -> int:
    """Bytes of a checkpoint in a format, for a model that is built already."""
    linears = set(build.linears)
    total = 0
    for p in build.parameters:
        path = f"{p.part}.{p.name}"
        other = next((other for other, names in mixed if within(path, names)), None)
        more = {p.name.removesuffix(".weight")} if other else set()  # the output layer, where it is named
        chosen, scales = (other, None) if other else (name, group)
        shapes = [] if within(path, whole) else _weights(spec, p, linears | more, FORMATS[chosen])
        each = sum(count * sum(part.nbytes for part in parts(chosen, shape, scales)) for shape, count in shapes)
        total += (each or WHOLE * p.count) * p.times
    return total


def _weights(spec: ModelSpec, p: Parameter, linears: set[str], known: Format) -> list[tuple[tuple[int, int], int]]:
    """The weights [out, in] that lie in one parameter and how many of each, if the format stores it in few bits.

    Of an expert gate and up are two.
    """
    shape = p.tensor.shape
    path = p.name.removesuffix(".weight")
    turned = any(part in path for part in spec.input_first)
    inputs, outputs = (shape[-2:] if turned else shape[-1:-3:-1]) if len(shape) > 1 else (0, 0)
    if "experts" in path and len(shape) == 3 and "shared_experts" not in path:
        joined = 2 if path.endswith("gate_up_proj") else 1
        return [((outputs // joined, inputs), shape[0] * joined)] if known.experts else []
    router = path.rpartition(".")[2] in ROUTERS
    if len(shape) != 2 or path not in linears or not known.linears or (router and not known.routers):
        return []
    assert prod(shape) == outputs * inputs
    return [((outputs, inputs), 1)]
