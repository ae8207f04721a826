"""Element types, as torch names them, and how two of them combine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type; compared by identity, as torch's are.

    `itemsize` is in bytes. `rank` orders types of one category by what they can hold; `category` is torch's:
    boolean, integer, floating point or complex.
    """

    name: str
    itemsize: int
    category: int
    rank: int

    @property
    def is_floating(self) -> bool:
        return self.category == 2

    def __repr__(self) -> str:
        return self.name


bool_ = DType("bool", 1, 0, 0)
uint8 = DType("uint8", 1, 1, 0)
int8 = DType("int8", 1, 1, 1)
int32 = DType("int32", 4, 1, 3)
int64 = DType("int64", 8, 1, 4)
float8_e4m3fn = DType("float8_e4m3fn", 1, 2, 0)
float16 = DType("float16", 2, 2, 1)
bfloat16 = DType("bfloat16", 2, 2, 1)
float32 = DType("float32", 4, 2, 2)
float64 = DType("float64", 8, 2, 3)
complex64 = DType("complex64", 8, 3, 0)

BY_NAME = {
    **{
        dtype.name: dtype
        for dtype in (bool_, uint8, int8, int32, int64, float8_e4m3fn, float16, bfloat16, float32, float64, complex64)
    },
    "fp32": float32,
    "bf16": bfloat16,
    "fp16": float16,
    "fp8": float8_e4m3fn,
}


def promote(a: DType, b: DType) -> DType:
    """The type of `a op b` for two tensors that both have dimensions (torch's `promote_types`)."""
    if a is b:
        return a
    if a.category != b.category:
        return a if a.category > b.category else b
    if a.rank == b.rank:  # float16 with bfloat16
        return float32
    return a if a.rank > b.rank else b
