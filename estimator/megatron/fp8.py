"""Tensors in fp8 as Transformer Engine keeps them: codes by row, codes by column, and what they are scaled by.

A product reads its operands along the dimension that is summed over: forward reads input and weight by row, backward the weight
and the input by column, and the gradient both ways. After release 2.11, pytorch/csrc/quantizer.cpp (`create_tensor`,
`get_scale_shape`), tensor/storage (`update_usage`), distributed.py (`gather_along_first_dim`) and quantization.py.

- `delayed`, `tensorwise`: one scale. Columns are a transposed copy, but where the GPU multiplies in any layout, as data centres'
  Blackwell does: there is one copy (`is_non_tn_fp8_gemm_supported`).
- `blockwise`: a float32 scale for 128 numbers, of a weight for 128 times 128. Columns are a copy of their own.
- `mxfp8`: a scale of a byte for 32 numbers; a product has them in another order. Columns are a copy of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from estimator.contract.errors import Contradiction
from estimator.families.build import Builder
from estimator.megatron.linear import Split
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.float8 import SCALED_PRODUCT
from estimator.tape.layout import Shape
from estimator.tape.tape import PARAMETER
from estimator.tape.tensor import Tensor, empty, moved, unary

BLOCK, MX_BLOCK = 128, 32
QUANTIZERS = {"forward": 3, "backward": 2}
"""Quantizers of each linear module: in forward for input, weight and output, in backward for the gradients of output and input
(module/base.py, `set_meta_tensor`)."""
FIELD = "training.fp8"

Codes = tuple[Tensor, ...]
"""Codes and their scales; nothing where there are none."""


class Operand(NamedTuple):
    """A tensor's codes by row and by column, which may be the same."""

    rows: Codes
    columns: Codes


@dataclass(frozen=True, slots=True)
class Fp8:
    """`turns`: columns of a tensor with one scale are a copy. `kept`: weights have no other form (`--fp8-param-gather`).
    `history`: maxima that delayed scaling remembers of each tensor."""

    recipe: str
    turns: bool
    kept: bool = False
    history: int = 1

    @property
    def whole(self) -> bool:
        """One scale for a tensor. Ranks gather its rows only, and make columns of all (`supports_only_rowwise_all_gather`)."""
        return self.recipe in ("delayed", "tensorwise")

    @property
    def alignment(self) -> int:
        """What sizes of a product are multiples of; rows of an expert are padded to it (`get_align_size_for_quantization`)."""
        return MX_BLOCK if self.recipe == "mxfp8" else 16

    def operand(self, x: Tensor, rows: bool, columns: bool, parts: int = 1, weight: bool = False, times: int = 1) -> Operand:
        """A new operand as large as x, or of `times` its rows; in `parts` of equal rows, each with scales of its own."""
        height, width = prod(x.shape[:-1]) * times, x.shape[-1]
        self._check(height // parts, width)

        def codes() -> Tensor:
            return empty(x.tape, (height, width), dtypes.float8_e4m3fn, "quantize")

        def scales(by_column: bool) -> Tensor:
            shape, dtype = self._scales(height // parts, width, by_column, weight)
            return empty(x.tape, (parts, *shape), dtype, "quantize")

        def quantized(operand: Operand) -> Operand:
            if times == 1:
                moved("quantize", x, *{codes for codes, _ in filter(None, operand)})
            return operand

        if not self.whole:
            return quantized(Operand((codes(), scales(False)) if rows else (), (codes(), scales(True)) if columns else ()))
        scale = empty(x.tape, (parts, 1 if parts == 1 else 128), dtypes.float32, "quantize")  # an allocation each
        by_row = (codes(), scale) if rows or not self.turns else ()
        if not self.turns:
            return quantized(Operand(by_row, by_row))
        return quantized(Operand(by_row, (codes(), scale) if columns else ()))

    def saved(self, operand: Operand, gathers: bool) -> Codes:
        """What of an input backward needs: columns, or where ranks gather it again and can gather rows only, those."""
        return operand.rows if self.whole and gathers else operand.columns

    def gathered(self, part: Codes, split: Split, rows: bool, columns: bool, beside: str = "") -> Operand:
        """An operand of all tokens, from this rank's codes; how userbuffers hide it `beside` the next product."""
        mine, ranks = part[0], split.group.size
        if self.recipe == "blockwise" and (mine.shape[0] % BLOCK or mine.shape[1] % BLOCK):
            raise Contradiction(
                f"ranks gather blocks of {BLOCK} by {BLOCK}, as {mine.shape[0]} by {mine.shape[1]} is not: choose other sizes",
                FIELD,
            )
        out = self.operand(mine, rows, columns, times=ranks)
        sent = out.rows[:1] if self.whole else (*out.rows, *out.columns)
        mine.tape.communicate("all_gather", split.group.name, ranks, sum(t.nbytes for t in sent), beside=beside)
        if columns and (self.recipe == "blockwise" or (self.whole and not self.turns)):
            unary("transpose", out.columns[0])  # the new copy takes the old one's place; or is let go of, where none is needed
        return out

    def turned(self, whole: Codes) -> Codes:
        """The columns of what was gathered by row."""
        return (unary("fp8_transpose", whole[0]),) if self.whole and self.turns else ()

    def product(self, like: Tensor, shape: Shape, inner: int, *operands: Codes, parts: int = 1) -> Tensor:
        """A product of this shape, over so many numbers, in half precision; of so many parts of its rows."""
        rows, kind = prod(shape[:-1]) // parts, dtypes.float8_e4m3fn
        like.tape.multiply(rows, shape[-1], inner, kind, parts, SCALED_PRODUCT, dtypes.bfloat16.itemsize)
        out = empty(like.tape, shape, dtypes.bfloat16, "gemm")
        self.ordered(*operands)
        return out

    def ordered(self, *operands: Codes) -> None:
        """A product's scales in the order that its kernel reads (pytorch/csrc/util.cpp, `swizzle_scaling_factors`)."""
        if self.recipe == "mxfp8":
            temporary = [unary("swizzle", scales) for _, scales in operands]
            del temporary

    def accumulated(self, weight: Tensor, tokens: int, *operands: Codes) -> None:
        """A weight's gradient, added to its `main_grad` by the product."""
        *experts, outputs, inputs = weight.shape
        parts = prod(experts)
        weight.tape.multiply(outputs, inputs, tokens // parts, dtypes.float8_e4m3fn, parts, SCALED_PRODUCT, 8)
        self.ordered(*operands)

    def weight(self, build: Builder, weight: Tensor) -> tuple[Operand, list[Tensor]]:
        """A weight's codes by row and by column, made anew in the first micro-batch of a step (`get_weight_workspace`), for a
        weight that is kept in fp8 all but its rows; and what its module remembers to make scales of."""
        products = weight.shape[0] if len(weight.shape) > 2 else 1
        with build.tape.counting(PARAMETER):
            made = self.operand(weight, True, True, products, weight=True)
            if self.kept:
                made.rows[0].storage.release()
            remembered = [
                empty(build.tape, shape, dtypes.float32, "fp8_meta")
                for count in QUANTIZERS.values()
                for shape in self._remembered(count * products)
            ]
        return made, remembered

    def _remembered(self, quantizers: int) -> list[Shape]:
        """Scales and largest numbers: a history of them, or of each quantizer its own, an allocation each."""
        if self.recipe == "delayed":
            return [(quantizers,), (self.history, quantizers)]
        return [(quantizers, 128)] * 2 if self.whole else []

    def _scales(self, height: int, width: int, by_column: bool, weight: bool) -> tuple[Shape, DType]:
        """Shape and type of the scales of a matrix."""
        if self.recipe == "mxfp8":
            shape = (_up(height // MX_BLOCK, 4), _up(width, 128)) if by_column else (_up(height, 128), _up(width // MX_BLOCK, 4))
            return shape, dtypes.uint8
        if weight:
            first, second = -(-height // BLOCK), -(-width // BLOCK)
            return (second, _up(first, 4)) if by_column else (first, _up(second, 4)), dtypes.float32
        along, across = (height, width) if by_column else (width, height)
        return (-(-along // BLOCK), _up(across, 4)), dtypes.float32

    def _check(self, height: int, width: int) -> None:
        step = self.alignment
        if height % step or width % step:
            raise Contradiction(
                f"products in fp8 take multiples of {step}, as {height} by {width} is not: choose other sizes", FIELD
            )


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
