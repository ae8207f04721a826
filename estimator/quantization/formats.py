"""The formats that frozen weights are stored in, by the names that jobs give them. Their tensors are described in layouts.py."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.contract.errors import Contradiction
from estimator.quantization import layouts
from estimator.quantization.layouts import BLOCK, Layout, Part
from estimator.tape.dtypes import DType, float16
from estimator.tape.layout import Shape


@dataclass(frozen=True, slots=True)
class Format:
    """`group`: weights that share a scale, where nothing else is given; None where the format has no groups.

    `linears`, `routers`, `experts`: whether linear layers are stored so, those that choose a mixture's experts, and the experts.
    `bias`: the type of linear layers' biases, if not the model's.
    """

    layout: Layout
    group: int | None = None
    linears: bool = True
    routers: bool = False
    experts: bool = True
    bias: DType | None = None


BLOCKS = _single, _double = layouts.bits_and_bytes(nested=False), layouts.bits_and_bytes(nested=True)
"""bitsandbytes' layouts, whose groups are blocks that know no rows."""

FORMATS: dict[str, Format] = {
    "nf4": Format(_single, BLOCK, routers=True, experts=False),
    "nf4-double": Format(_double, BLOCK, routers=True, experts=False),
    "fp4": Format(_single, BLOCK, routers=True, experts=False),
    "int8": Format(layouts.whole_rows, routers=True, experts=False),
    "gptq-int8": Format(layouts.gptq(8), 128, bias=float16),
    "gptq-int4": Format(layouts.gptq(4), 128, bias=float16),
    "gptq-int4-ungrouped": Format(layouts.gptq(4), bias=float16),
    "gptq-int3": Format(layouts.gptq(3), 128, bias=float16),
    "gptq-int2": Format(layouts.gptq(2), 128, bias=float16),
    "awq-int4": Format(layouts.awq, 128, bias=float16),
    "packed-int8": Format(layouts.packed(8), 128),
    "packed-int4": Format(layouts.packed(4), 128),
    "hqq-int8": Format(layouts.hqq(8), 64, routers=True, experts=False),
    "hqq-int4": Format(layouts.hqq(4), 64, routers=True, experts=False),
    "hqq-int3": Format(layouts.hqq(3), 64, routers=True, experts=False),
    "hqq-int2": Format(layouts.hqq(2), 64, routers=True, experts=False),
    "hqq-int1": Format(layouts.hqq(1), 64, routers=True, experts=False),
    "eetq-int8": Format(layouts.eetq, routers=True, experts=False, bias=float16),
    "torchao-int8": Format(layouts.torchao_int8, routers=True, experts=False),
    "torchao-int4": Format(layouts.torchao_int4, 128, routers=True, experts=False),
    "torchao-int4-tiles": Format(layouts.torchao_tiles, 128, routers=True, experts=False),
    "torchao-fp8": Format(layouts.fp8_row, routers=True, experts=False),
    "fp8": Format(layouts.fp8_tensor),
    "fp8-row": Format(layouts.fp8_row),
    "fp8-block": Format(layouts.fp8_block, 128),
    "mxfp4": Format(layouts.mxfp4, 32, linears=False),
    "nvfp4": Format(layouts.nvfp4, 16),
}
"""By the name in a job. MXFP4 is gpt-oss's, whose experts alone are stored so. What libraries quantize as they load a model is
every linear layer, which experts are none of; what was quantized before leaves routers as they are."""
FIXED = ("fp8-block", "mxfp4", "nvfp4")
"""Formats whose group is part of them."""


def parts(name: str, weight: Shape, group: int | None = None) -> list[Part]:
    """The tensors that stand for a weight [out, in] in a format."""
    outputs, inputs = weight
    known = FORMATS[name]
    return known.layout(outputs, inputs, group or known.group or inputs)


def check_group(name: str, group: int | None, where: str) -> None:
    """Raise `InvalidJob` for a group that the format cannot have."""
    if group is None:
        return
    known = FORMATS.get(name)
    if known is None or known.group is None or name in FIXED:
        raise Contradiction(f"{name} has no group to choose: leave it out", where)
    least, most = (64, 4096) if known.layout in BLOCKS else (16, 1024)
    if not least <= group <= most or group & (group - 1):
        raise Contradiction(f"no kernel has a group of {group} for {name}: write a power of two from {least} to {most}", where)
