"""Frozen weights in few bits, as bitsandbytes stores them: exact bytes, and the linear layers that compute with them.

Embeddings, norms and the output layer stay in the model's own type (transformers, `get_keys_to_not_convert`); GPTQ's Mixtral
leaves its routers so, too (AutoGPTQ, modeling/mixtral.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

from estimator import dtypes
from estimator.families.build import Builder, Quantization
from estimator.families.modules import Module
from estimator.tape.layout import Shape
from estimator.tape.pointwise import to
from estimator.tape.quantized import FourBit, matmul_4bit, matmul_8bit, matmul_gptq, unpack_gptq
from estimator.tape.tensor import Tensor, unary

BLOCK = 64
"""Weights per scale in 4-bit storage (`quantize_4bit`, default block size)."""
SCALES_PER_BLOCK = 256
"""Scales per second-level scale in double quantization (`quantize_4bit`, `compress_statistics`)."""


@runtime_checkable
class Packed(Protocol):
    """A linear layer whose weight can be unpacked."""

    def unpack(self, dtype: dtypes.DType) -> Tensor:
        """The weight in a type: a new tensor."""


@runtime_checkable
class Dequantizes(Protocol):
    """A linear layer of bitsandbytes'."""

    bias: Tensor | None

    def dequantized(self) -> Tensor:
        """The weight as PEFT asks for it (utils/integrations.py, `dequantize_bnb_weight`): a new tensor [out, in]."""


@dataclass(frozen=True, slots=True)
class BitsAndBytes4Bit:
    """NF4 or FP4; `nested` is double quantization. Products run in the type of the model's other weights."""

    nested: bool
    routers: bool = True

    def linear(self, build: Builder, name: str, weight: Shape, bias: bool) -> Module:
        count = prod(weight)
        blocks = -(-count // BLOCK)
        packed = build.parameter(name + ".weight", (-(-count // 2), 1), dtypes.uint8, count=count)
        scales = build.buffer(name + ".absmax", (blocks,), dtypes.uint8 if self.nested else dtypes.float32)
        constants = [build.buffer(name + ".code", (16,), dtypes.float32)]
        if self.nested:
            constants += [
                build.buffer(name + ".nested_absmax", (-(-blocks // SCALES_PER_BLOCK),), dtypes.float32),
                build.buffer(name + ".nested_code", (256,), dtypes.float32),
                build.buffer(name + ".offset", (), dtypes.float32),
            ]
        added = build.parameter(name + ".bias", weight[:1]) if bias else None
        return _Linear4bit(FourBit(packed, weight, scales, self.nested), constants, added, build.compute or build.dtype)


class _Linear4bit:
    def __init__(self, weight: FourBit, constants: list[Tensor], bias: Tensor | None, dtype: dtypes.DType):
        self.weight, self.constants, self.bias, self.dtype = weight, constants, bias, dtype

    def dequantized(self) -> Tensor:
        return self.weight.unpack(self.dtype)

    def unpack(self, dtype: dtypes.DType) -> Tensor:
        return self.weight.unpack(dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return to(matmul_4bit(to(x, self.dtype), self.weight), x.dtype)


@dataclass(frozen=True, slots=True)
class Gptq:
    """Codes of 4 bits in words of 32, with a float16 scale and a zero point per group of inputs (AutoGPTQ, GPTQModel).

    Without `group`, all inputs of an output are one (`group_size: -1`).
    """

    group: int | None = 128
    routers: bool = False

    def linear(self, build: Builder, name: str, weight: Shape, bias: bool) -> Module:
        outputs, inputs = weight
        groups = 1 if self.group is None else -(-inputs // self.group)
        codes = build.parameter(name + ".qweight", (inputs // 8, outputs), dtypes.int32, count=prod(weight))
        constants = [
            build.buffer(name + ".qzeros", (groups, outputs // 8), dtypes.int32),
            build.buffer(name + ".scales", (groups, outputs), dtypes.float16),
            build.buffer(name + ".g_idx", (inputs,), dtypes.int32),
        ]
        if bias:
            constants.append(build.parameter(name + ".bias", weight[:1], dtypes.float16))
        return _LinearGptq(codes, constants, weight)


class _LinearGptq:
    def __init__(self, codes: Tensor, constants: list[Tensor], weight: Shape):
        self.codes, self.constants, self.weight = codes, constants, weight

    def unpack(self, dtype: dtypes.DType) -> Tensor:
        return unpack_gptq(self.codes, self.weight)

    def __call__(self, x: Tensor) -> Tensor:
        return to(matmul_gptq(x, self.weight), dtypes.float16)


@dataclass(frozen=True, slots=True)
class BitsAndBytes8Bit:
    """LLM.int8(): one byte per weight and a float32 scale per output."""

    routers: bool = True

    def linear(self, build: Builder, name: str, weight: Shape, bias: bool) -> Module:
        codes = build.parameter(name + ".weight", weight, dtypes.int8)
        constants = [build.buffer(name + ".SCB", weight[:1], dtypes.float32)]
        return _Linear8bit(codes, constants, build.parameter(name + ".bias", weight[:1]) if bias else None)


class _Linear8bit:
    def __init__(self, codes: Tensor, constants: list[Tensor], bias: Tensor | None):
        self.codes, self.constants, self.bias = codes, constants, bias

    def dequantized(self) -> Tensor:
        """Codes times scales, then times a number (`int8_vectorwise_dequant`)."""
        scaled = unary("mul", self.codes, dtypes.float32)
        return unary("mul", scaled)

    def __call__(self, x: Tensor) -> Tensor:
        return matmul_8bit(x, self.codes)


STORAGE: dict[str, Quantization] = {
    "nf4": BitsAndBytes4Bit(nested=False),
    "nf4-double": BitsAndBytes4Bit(nested=True),
    "fp4": BitsAndBytes4Bit(nested=False),
    "int8": BitsAndBytes8Bit(),
    "gptq-int4": Gptq(),
    "gptq-int4-ungrouped": Gptq(group=None),
}
"""By the name in a job's `quantization`."""
