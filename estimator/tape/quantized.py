"""Products with frozen weights in few bits: bitsandbytes 0.50, GPTQModel, HQQ and transformers' fp8 on CUDA.

The weight itself is never trained, so only the gradient of the input is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.dtypes import DType
from estimator.tape.float8 import SCALED_PRODUCT
from estimator.tape.layout import Shape
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, empty, moved, output, unary

FUSED_ROWS = 4
"""Up to so many input rows every GPU multiplies without unpacking the weight (`_GEMM_4BIT_CUSTOM_FLOOR_M`)."""

FP8_BLOCK = 128
"""Rows and columns that share a scale (`FineGrainedFP8Config.weight_block_size`)."""

HELD = "8-bit layers keep their inputs outside autograd's saved tensors: checkpointing does not free them"


@dataclass(frozen=True, slots=True)
class FourBit:
    """A weight of `shape` [out, in] packed two to a byte, with one scale per 64 weights.

    With `nested` (double quantization) the scales are bytes, with a float32 scale per 256 of them.
    """

    packed: Tensor
    shape: Shape
    scales: Tensor
    nested: bool

    def unpack(self, dtype: DType) -> Tensor:
        """The weight in `dtype`: a new tensor."""
        scales = self.scales
        if self.nested:
            scales = empty(scales.tape, scales.shape, dtypes.float32, "dequantize_blockwise")
        return output("dequantize_4bit", (self.packed, scales), self.shape, dtype)


def matmul_4bit(x: Tensor, weight: FourBit) -> Tensor:
    """x W^T (+ b, in the same kernel), with W unpacked for the product, and again for the gradient. Saves nothing of size."""
    outputs, inputs = weight.shape

    def backward(g: Tensor, *_: Tensor) -> Tensor:
        full = to(weight.unpack(x_dtype), g.dtype)
        return _multiply(g, full, inputs)

    x_dtype = x.dtype
    node = record("MatMul4Bit", (x,), (), backward)
    if x.numel // inputs <= FUSED_ROWS:
        rows = x.numel // inputs
        nbytes = weight.packed.nbytes + weight.scales.nbytes + rows * (inputs + outputs) * x.dtype.itemsize
        x.tape.compute("gemm_4bit", 2 * rows * outputs * inputs, nbytes, ((1, rows, outputs, inputs), x.dtype))
        return attach(node, empty(x.tape, (*x.shape[:-1], outputs), x.dtype, "gemm_4bit"))
    full = weight.unpack(x.dtype)
    return attach(node, _multiply(x, full, outputs))


def matmul_gptq(x: Tensor, weight: Shape) -> Tensor:
    """x W^T with W unpacked to float16 for the product, and again for the gradient; saves nothing.

    GPTQModel and AutoGPTQ, nn_modules/triton_utils/dequant.py, `QuantLinearFunction`.
    """
    outputs, inputs = weight

    def backward(g: Tensor, *_: Tensor) -> Tensor:
        full = unpack_gptq(g, weight)
        return _multiply(g, full, inputs)

    node = record("QuantLinear", (x,), (), backward)
    full = unpack_gptq(x, weight)
    return attach(node, _multiply(x, full, outputs))


def unpack_gptq(like: Tensor, weight: Shape) -> Tensor:
    """The weight in float16 on the tape of `like`: a new tensor [in, out]."""
    full = empty(like.tape, weight[::-1], dtypes.float16, "dequant248")
    moved("dequant248", full)
    return full


@dataclass(frozen=True, slots=True)
class HqqWeight:
    """A weight of `shape` [out, in] in bytes of `codes`, one, two, four or eight to a byte."""

    codes: Tensor
    shape: Shape


def matmul_hqq(x: Tensor, weight: HqqWeight) -> Tensor:
    """x W^T with W unpacked for the product, and again for the gradient; keeps x, though no gradient needs it.

    hqq 0.2.8, core/quantize.py, `HQQMatmulNoCacheMul`.
    """
    outputs, inputs = weight.shape

    def backward(g: Tensor, *_: Tensor) -> Tensor:
        full = _unpack_hqq(weight, g.dtype)
        return _multiply(g, full, inputs)

    node = record("HQQMatmul", (x,), (x,), backward)
    full = _unpack_hqq(weight, x.dtype)
    return attach(node, _multiply(x, full, outputs))


def _unpack_hqq(weight: HqqWeight, dtype: DType) -> Tensor:
    """Codes as numbers, less their zero points, times their scales: three tensors (`Quantizer.dequantize`; core/bitpack.py)."""
    codes = weight.codes
    per = prod(weight.shape) // codes.numel
    if per == 1:
        numbers = unary("_to_copy", codes, dtype)
    else:
        numbers = empty(codes.tape, weight.shape, dtype, "empty")
        for i in range(per):
            masked = unary("bitwise_and", codes)
            shifted = unary("rshift", masked) if i < per - 1 else masked
            del masked, shifted
    centred = unary("sub", numbers)
    scaled = unary("mul", centred)
    del centred, numbers
    return scaled


def matmul_8bit(x: Tensor, codes: Tensor) -> Tensor:
    """LLM.int8(): x quantized row by row, an integer product with `codes` [out, in], scaled back, a bias added in place.

    Keeps x for backward where it needs a gradient, outside the saved tensors: checkpointing does not drop it
    (`ctx.tensors` in bitsandbytes/autograd/_functions.py). The few outlier columns are not counted.
    """
    tape, (outputs, inputs) = x.tape, codes.shape
    rows = (x.numel // inputs, inputs)
    source = x.dtype

    def backward(g: Tensor, *_: Tensor) -> Tensor:
        weight = output("_to_copy", (codes,), (outputs, inputs), source)
        scale = empty(tape, (outputs, 1), dtypes.float32, "mul")
        del scale
        return _multiply(to(g, source), weight, inputs)

    node = record("MatMul8bitLt", (x,), (), backward)
    if node is not None:
        node.hold(x)
        if tape.saved_tensor_hooks is not None:
            tape.remarks[HELD] = None
    half = to(x.detach(), dtypes.float16)
    quantized = output("int8_vectorwise_quant", (half,), rows, dtypes.int8)
    row_scales = empty(tape, rows[:1], dtypes.float32, "int8_vectorwise_quant")
    outliers = unary("ge", unary("abs", half), dtypes.bool_)
    del outliers, half
    tape.multiply(rows[0], outputs, inputs, dtypes.int8)
    product = empty(tape, (rows[0], outputs), dtypes.int32, "int8_linear_matmul")
    out = output("int8_mm_dequant", (product,), (*x.shape[:-1], outputs), dtypes.float16)
    del product
    if source is not dtypes.float16:
        out = unary("_to_copy", out, source)
    del quantized, row_scales
    return attach(node, out)


def matmul_fp8(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """x W^T in fp8, x quantized within the kernel; its gradient with W in the type of the gradient. Saves nothing of size.

    transformers 5.23, integrations/finegrained_fp8.py: `FP8LinearFunction`, and of its kernels the one in Triton
    (`finegrained_fp8_linear`). A bias is added in place.
    """
    outputs, inputs = codes.shape

    def backward(g: Tensor, *_: Tensor) -> Tensor:
        full = _unpack_fp8(codes, scales, g.dtype)
        return _multiply(g, full, inputs)

    node = record("FP8Linear", (x,), (), backward)
    x.tape.multiply(x.numel // inputs, outputs, inputs, codes.dtype, operation=SCALED_PRODUCT)
    return attach(node, empty(x.tape, (*x.shape[:-1], outputs), x.dtype, "fp8_matmul"))


def _unpack_fp8(codes: Tensor, scales: Tensor, dtype: DType) -> Tensor:
    """Codes as numbers, times their scales in place; those of blocks are repeated for each row (`_dequantize_fp8_weight`)."""
    narrow = unary("_to_copy", scales, dtype)
    full = unary("_to_copy", codes, dtype)
    if scales.shape:
        rows = scales.shape[0] * FP8_BLOCK
        repeated = empty(scales.tape, (rows, scales.shape[1]), dtype, "repeat_interleave")
        del repeated
    del narrow
    return full


def _multiply(a: Tensor, weight: Tensor, outputs: int) -> Tensor:
    a.tape.multiply(a.numel // a.shape[-1], outputs, a.shape[-1], a.dtype)
    return empty(a.tape, (*a.shape[:-1], outputs), a.dtype, "mm")
