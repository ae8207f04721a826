"""The tensors that stand for one weight [out, in] in few bits: their names, shapes and types.

Each from the classes that make or load them: bitsandbytes 0.50 (functional.py, `quantize_4bit`); GPTQ and AWQ gptqmodel 7.7
(nn_modules/qlinear/__init__.py, `_register_gptq_buffers`) and autoawq 0.2.9 (`WQLinear_GEMM`); HQQ 0.2.8 (core/quantize.py and
bitpack.py, groups along the input); EETQ, fp8 by block and by row transformers 5.23 (integrations/eetq.py, finegrained_fp8.py,
fbgemm_fp8.py); torchao 0.18 (quantize_/workflows); MXFP4 gpt-oss's checkpoints (integrations/mxfp4.py); NVFP4 ModelOpt's, as vLLM
loads them (quantization/modelopt.py); pack-quantized as vLLM and SGLang hold it (compressed_tensors_moe_wna16.py,
compressed_tensors_wNa16_moe.py; Marlin's order has as many bytes). What is stored is counted: what a kernel repacks when it is
loaded may need less (Marlin drops zero points and order).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from estimator.tape.dtypes import DType, bfloat16, float8_e4m3fn, float16, float32, int8, int32, uint8
from estimator.tape.layout import Shape

BLOCK = 64
"""Weights per scale in bitsandbytes' 4-bit storage, where nothing else is given (`quantize_4bit`, default block size)."""
WORD = 32
"""Bits of a word that codes are packed into."""
SCALES_PER_BLOCK = 256
"""Scales per second-level scale in double quantization (bitsandbytes' `quantize_4bit`, `compress_statistics`)."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the tensors that stand for a weight."""

    name: str
    shape: Shape
    dtype: DType

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


Layout = Callable[[int, int, int], list[Part]]
"""The parts of a weight of so many outputs and inputs, in groups of so many inputs; the first holds the codes."""


def _up(a: int, b: int) -> int:
    return -(-a // b)


def bits_and_bytes(nested: bool) -> Layout:
    """Two codes to a byte, a float32 scale per block of weights and the values of the codes; `nested` (double quantization) has a
    byte for a scale, with a float32 scale per 256 of them."""

    def layout(outputs: int, inputs: int, block: int) -> list[Part]:
        blocks = _up(outputs * inputs, block)
        codes = Part("weight", (_up(outputs * inputs, 2), 1), uint8)
        if not nested:
            return [codes, Part("absmax", (blocks,), float32), Part("code", (16,), float32)]
        first = [codes, Part("absmax", (blocks,), uint8), Part("code", (16,), float32)]
        second = Part("nested_absmax", (_up(blocks, SCALES_PER_BLOCK),), float32)
        return [*first, second, Part("nested_code", (256,), float32), Part("offset", (), float32)]

    return layout


def whole_rows(outputs: int, inputs: int, group: int) -> list[Part]:
    """LLM.int8(): a byte per weight, and a scale per output."""
    return [Part("weight", (outputs, inputs), int8), Part("SCB", (outputs,), float32)]


def gptq(bits: int) -> Layout:
    """Words of codes along the input, a zero point and a scale per group and output, and each input's group (act-order)."""

    def layout(outputs: int, inputs: int, group: int) -> list[Part]:
        groups = _up(inputs, group)
        return [
            Part("qweight", (_up(inputs * bits, WORD), outputs), int32),
            Part("qzeros", (groups, _up(outputs * bits, WORD)), int32),
            Part("scales", (groups, outputs), float16),
            Part("g_idx", (inputs,), int32),
        ]

    return layout


def awq(outputs: int, inputs: int, group: int) -> list[Part]:
    """Words of eight codes along the output."""
    groups = _up(inputs, group)
    return [
        Part("qweight", (inputs, outputs // 8), int32),
        Part("qzeros", (groups, outputs // 8), int32),
        Part("scales", (groups, outputs), float16),
    ]


def packed(bits: int) -> Layout:
    """Words of codes along the input, a scale per group and output, and the weight's two sizes; symmetric, so no zero points."""

    def layout(outputs: int, inputs: int, group: int) -> list[Part]:
        return [
            Part("weight_packed", (outputs, _up(inputs * bits, WORD)), int32),
            Part("weight_scale", (outputs, _up(inputs, group)), bfloat16),
            Part("weight_shape", (2,), int32),
        ]

    return layout


def hqq(bits: int) -> Layout:
    """Bytes of codes, in three bits words of ten; a scale and a zero point per group in the type that is computed in."""
    per, dtype = (10, int32) if bits == 3 else (8 // bits, uint8)

    def layout(outputs: int, inputs: int, group: int) -> list[Part]:
        groups = outputs * inputs // group
        scales = [Part(name, (groups, 1), bfloat16) for name in ("scale", "zero")]
        return [Part("W_q", (_up(groups, per), group), dtype), *scales]

    return layout


def eetq(outputs: int, inputs: int, group: int) -> list[Part]:
    return [Part("weight", (inputs, outputs), int8), Part("weight_scales", (outputs,), float16)]


def torchao_int8(outputs: int, inputs: int, group: int) -> list[Part]:
    row = (outputs, 1)
    return [Part("qdata", (outputs, inputs), int8), Part("scale", row, float32), Part("zero_point", row, int8)]


def torchao_int4(outputs: int, inputs: int, group: int) -> list[Part]:
    """The plain packing, two codes to a byte (int4_tensor.py, `Int4Tensor`)."""
    scales = (_up(inputs, group), outputs)
    codes = Part("qdata", (outputs, inputs // 2), uint8)
    return [codes, Part("scale", scales, bfloat16), Part("zero_point", scales, bfloat16)]


def torchao_tiles(outputs: int, inputs: int, group: int) -> list[Part]:
    """tinygemm's tiles: outputs to a multiple of 8, inputs of 1024 (int4_tile_packed_to_4d_tensor.py, `from_hp`)."""
    rows, columns = _up(outputs, 8) * 8, _up(inputs, 1024) * 1024
    tiles = Part("qdata", (rows // 8, columns // 128, 32, 4), int32)
    return [tiles, Part("scale_and_zero", (columns // group, rows, 2), bfloat16)]


def fp8_tensor(outputs: int, inputs: int, group: int) -> list[Part]:
    return [Part("weight", (outputs, inputs), float8_e4m3fn), Part("weight_scale", (), float32)]


def fp8_row(outputs: int, inputs: int, group: int) -> list[Part]:
    return [Part("weight", (outputs, inputs), float8_e4m3fn), Part("weight_scale", (outputs, 1), float32)]


def fp8_block(outputs: int, inputs: int, group: int) -> list[Part]:
    scales = (_up(outputs, group), _up(inputs, group))
    return [Part("weight", (outputs, inputs), float8_e4m3fn), Part("weight_scale_inv", scales, float32)]


def mxfp4(outputs: int, inputs: int, group: int) -> list[Part]:
    """Two codes to a byte, and an exponent of eight bits per 32."""
    groups = _up(inputs, group)
    return [Part("blocks", (outputs, groups, group // 2), uint8), Part("scales", (outputs, groups), uint8)]


def nvfp4(outputs: int, inputs: int, group: int) -> list[Part]:
    """Two codes to a byte, a scale of eight bits per 16, one in float32 for all, and one for the inputs."""
    codes, scales = (
        Part("weight", (outputs, inputs // 2), uint8),
        Part("weight_scale", (outputs, _up(inputs, group)), float8_e4m3fn),
    )
    return [codes, scales, Part("weight_scale_2", (), float32), Part("input_scale", (), float32)]
