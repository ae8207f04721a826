"""Linear layers that compute with frozen weights in few bits, as bitsandbytes, GPTQModel, HQQ, torchao and transformers do.

They are stored as formats.py says.

Embeddings, norms and the output layer stay in the model's own type (transformers, `get_keys_to_not_convert`); GPTQ's Mixtral
leaves its routers so, too (AutoGPTQ, modeling/mixtral.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

from estimator.contract.errors import Contradiction, NotModelled
from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.families.parameter import Weight
from estimator.families.protocols import Quantization
from estimator.quantization.formats import check_group, parts
from estimator.quantization.layouts import Part
from estimator.tape import dtypes
from estimator.tape.layout import Shape
from estimator.tape.pointwise import to
from estimator.tape.quantized import (
    FourBit,
    HqqWeight,
    matmul_4bit,
    matmul_8bit,
    matmul_fp8,
    matmul_gptq,
    matmul_hqq,
    unpack_gptq,
)
from estimator.tape.tensor import Tensor, unary
from estimator.tape.torchao import matmul_float8, matmul_int8

FIELD = "training.quantization"


def held(
    build: Builder, name: str, weight: Shape, stored: list[Part], words: int = 1, active: int | None = None
) -> tuple[Tensor, list[Tensor]]:
    """The codes of a weight, a parameter that counts as what it stands for, and what else is held with them.

    `active`: how much of it one token uses, where that is not all. Where parameters are flattened, the first `words` of what is
    stored are such, in the type of the model's other weights: bitsandbytes' `quant_storage`; fms-acceleration's
    `build_patch_to_view_tensor_to_parameter_for_fsdp_gptq`.
    """
    codes, *others = stored
    if not build.sharding.flattens:
        packed = build.parameter(f"{name}.{codes.name}", codes.shape, codes.dtype, count=prod(weight), active=active)
        return packed, [build.buffer(f"{name}.{part.name}", part.shape, part.dtype) for part in others]
    viewed = [(part.name, (part.nbytes // build.dtype.itemsize,)) for part in stored[:words]]
    packed, *flat = [
        build.parameter(f"{name}.{part}", shape, build.dtype, count=0 if i else prod(weight))
        for i, (part, shape) in enumerate(viewed)
    ]
    return packed, flat + [build.buffer(f"{name}.{part.name}", part.shape, part.dtype) for part in stored[words:]]


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
    """NF4 or FP4, by its format's name. Products run in the type of the model's other weights."""

    name: str
    block: int | None = None
    routers: bool = True

    def linear(self, build: Builder, name: str, weight: Shape, bias: bool) -> Module:
        packed, constants = held(build, name, weight, parts(self.name, weight, self.block))
        scales, *constants = constants
        added = build.parameter(name + ".bias", weight[:1]) if bias else None
        nested = scales.dtype is dtypes.uint8
        return _Linear4bit(FourBit(packed, weight, scales, nested), constants, added, build.compute or build.dtype)


@dataclass(frozen=True, slots=True)
class BitsAndBytes4BitExperts(BitsAndBytes4Bit):
    """The same, and the experts of mixtures in it, too, whose weights are 3-D parameters."""

    def experts(self, build: Builder, name: str, weight: Shape, used: int) -> Weight:
        count, *matrix = weight
        stored = parts(self.name, (count * matrix[0], prod(matrix[1:])), self.block)
        packed, constants = held(build, name, weight, stored, active=prod(matrix) * used)
        if build.adapter is not None and type(build.adapter.weight(build, name, packed, used)) is not Weight:
            raise NotModelled(
                "adapters on experts in 4 bits are not modelled yet; name other targets", "training.adapter.targets"
            )
        scales, *constants = constants
        found = FourBit(packed, weight, scales, scales.dtype is dtypes.uint8)
        return _Experts4bit(found, constants, build.dtype)


class _Experts4bit(Weight):
    """bitsandbytes/nn/parametrize.py: unpacked without autograd when it is first read, and kept until the module has run."""

    def __init__(self, weight: FourBit, constants: list[Tensor], dtype: dtypes.DType):
        super().__init__(weight.packed)
        self.weight, self.constants, self.dtype = weight, constants, dtype
        self.value: Tensor | None = None

    def __call__(self) -> Tensor:
        if self.value is None:
            self.value = self.weight.unpack(self.dtype)
        return self.value

    def leave(self) -> None:
        self.value = None


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
    """Codes of few bits in words of 32, with a float16 scale and a zero point per group of inputs (AutoGPTQ, GPTQModel)."""

    name: str
    group: int | None = None
    routers: bool = False

    def linear(self, build: Builder, name: str, weight: Shape, bias: bool) -> Module:
        codes, constants = held(build, name, weight, parts(self.name, weight, self.group), words=2)
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


@dataclass(frozen=True, slots=True)
class Hqq:
    """HQQ's own backend, which unpacks the weight by operations of torch: `HQQBackend.PYTORCH`, its default."""

    name: str
    group: int | None = None
    routers: bool = True

    def linear(self, build: Builder, name: str, weight: Shape, bias: bool) -> Module:
        codes, constants = held(build, name, weight, parts(self.name, weight, self.group))
        if bias:
            constants.append(build.parameter(name + ".bias", weight[:1]))
        return _LinearHqq(HqqWeight(codes, weight), constants)


class _LinearHqq:
    def __init__(self, weight: HqqWeight, constants: list[Tensor]):
        self.weight, self.constants = weight, constants

    def __call__(self, x: Tensor) -> Tensor:
        return matmul_hqq(x, self.weight)


@dataclass(frozen=True, slots=True)
class Torchao:
    """torchao's weights alone in eight bits: `Int8WeightOnlyConfig`, `Float8WeightOnlyConfig`."""

    name: str
    routers: bool = True

    def linear(self, build: Builder, name: str, weight: Shape, bias: bool) -> Module:
        codes, constants = held(build, name, weight, parts(self.name, weight))
        return _LinearTorchao(codes, constants, build.parameter(name + ".bias", weight[:1]) if bias else None, build.dtype)


class _LinearTorchao:
    def __init__(self, codes: Tensor, constants: list[Tensor], bias: Tensor | None, dtype: dtypes.DType):
        self.codes, self.constants, self.bias, self.dtype = codes, constants, bias, dtype

    def __call__(self, x: Tensor) -> Tensor:
        if self.codes.dtype is dtypes.int8:
            return matmul_int8(x, self.codes, self.constants[0], self.bias)
        return matmul_float8(x, self.codes, self.dtype, self.bias)


@dataclass(frozen=True, slots=True)
class Fp8:
    """transformers' `FP8Linear`, with a scale per block or one for all of a weight."""

    name: str
    routers: bool = False

    def linear(self, build: Builder, name: str, weight: Shape, bias: bool) -> Module:
        codes, (scales,) = held(build, name, weight, parts(self.name, weight))
        return _LinearFp8(codes, scales, build.parameter(name + ".bias", weight[:1]) if bias else None)


class _LinearFp8:
    def __init__(self, codes: Tensor, scales: Tensor, bias: Tensor | None):
        self.codes, self.scales, self.bias = codes, scales, bias

    def __call__(self, x: Tensor) -> Tensor:
        return matmul_fp8(x, self.codes, self.scales)


BITSANDBYTES = ("nf4", "nf4-double", "fp4", "int8")
TRAINED = (
    *BITSANDBYTES,
    *("gptq-int8", "gptq-int4", "gptq-int4-ungrouped", "gptq-int2", "hqq-int8", "hqq-int4", "hqq-int2", "hqq-int1"),
    *("torchao-int8", "torchao-fp8", "fp8", "fp8-block"),
)
"""Formats of frozen weights with which an adapter's training is modelled. GPTQ's Triton kernel has no three bits."""
IN_FLOAT16 = ("awq-int4", "eetq-int8")
"""Formats with which adapters are trained in float16 alone (awq.py)."""
INFERENCE = {
    "fp8-row": "FBGEMM's fp8 layers",
    "mxfp4": "MXFP4's experts",
    "torchao-int4": "torchao's weights in four bits",
    "torchao-int4-tiles": "torchao's weights in four bits",
}
"""Formats with which transformers 5.23 refuses to train adapters (`is_trainable` of its quantizers)."""


def storage(name: str, group: int | None, where: str, experts: bool = False) -> Quantization:
    """Linear layers in a format, unpacked as its library does; in 4 bits of bitsandbytes' `experts`, too, where that is asked.

    `where`: the field to blame for a group that cannot be.
    """
    check_group(name, group, where)
    if name in INFERENCE:
        raise Contradiction(
            f"transformers trains nothing beside {INFERENCE[name]}; write one of {', '.join(TRAINED)}", "training.quantization"
        )
    if name not in TRAINED:
        raise NotModelled(
            f"training beside weights in {name} is not modelled yet; {', '.join((*TRAINED, *IN_FLOAT16))} are. "
            "Its bytes: willitfit models show",
            FIELD,
        )
    if name == "int8":
        return BitsAndBytes8Bit()
    if name.startswith("torchao"):
        return Torchao(name)
    if name in BITSANDBYTES:
        return BitsAndBytes4BitExperts(name, group) if experts else BitsAndBytes4Bit(name, group)
    if name.startswith("fp8"):
        return Fp8(name)
    return Hqq(name, group) if name.startswith("hqq") else Gptq(name, group)
