"""How long each kernel on a tape runs, by the accelerator's measured curves.

Products are those of their shape and type, attention that of its kernel, head size and length; everything else is bound by the
bytes that it reads and writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Protocol

from estimator.hardware.accelerator import Accelerator
from estimator.tape.dtypes import DType
from estimator.tape.tape import EXPERTS, GROUPED, PACKED, Work
from estimator.timing.curves import DTYPES, attention_seconds, decode_seconds, matmul_seconds, memory_seconds
from estimator.timing.experts import IN_MXFP8, experts_seconds, experts_type, measured_experts
from estimator.timing.measured import Curves, Direction, Reading, shared, slower

PRODUCTS, ATTENTION, MEMORY = KINDS = ("matrix products", "attention", "memory-bound kernels")
"""What a kernel's time is spent on."""

KERNELS = {
    "flash_attention": "flash2",
    "flash_attention_3": "flash3",
    "cudnn_attention": "cudnn",
    "efficient_attention": "efficient",
    "triton_attention": "triton",
}
"""Attention's operations on the tape, as curves name their kernels."""
SUBSTITUTES = {"flash3": "flash2", "cudnn": "flash2", "efficient": "flash2", "triton": "flash2"}
"""Whose curve a kernel takes that was not measured on a card."""
SERVED = "flash3"
"""The kernel that servers take for prompts on Hopper, the only cards that have it, whatever torch would
(vllm/v1/attention/backends/fa_utils.py, `get_flash_attn_version`; sglang/srt/server_args.py)."""
BACKWARD = "_backward"
TILE = 64
"""Queries that attention's kernels work on at a time, at least (FlashAttention-2's 64 or 128,
csrc/flash_attn/src/flash_fwd_launch_template.h)."""
TYPES = {"float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "uint8": "int8"}
"""Element types that curves name otherwise."""
ARITHMETIC = {"fp8": "fp8", "fp8-row": "fp8", "torchao-fp8": "fp8", "fp8-block": "fp8_block", "nvfp4": "nvfp4"}
"""Formats of stored weights that servers multiply with as they are, and the curve of their products (vLLM's CUTLASS kernels)."""


UNPACKED, CACHED = "packed", "cache"
"""Kinds of `Reading` that are no types of products."""


class Timer(Protocol):
    """Times kernels on a card."""

    @property
    def card(self) -> Accelerator: ...

    def kernel(self, work: Work) -> tuple[str, float]:
        """What a kernel's time is spent on, and its seconds."""


@dataclass(slots=True)
class Clock:
    """Times kernels on one card that was measured. `tf32`: products of float32 run in it. `reading`: what each of
    its multiprocessors reads at most, by type of product, `packed` for weights that are unpacked, and `cache`. `engine`: the
    server whose own kernels run, if one does; `mxfp8`: it quantizes what goes into experts in MXFP4, where that was timed."""

    card: Accelerator
    curves: Curves
    tf32: bool = False
    reading: Mapping[str, Reading] = field(default_factory=dict)
    engine: str = ""
    mxfp8: bool = False
    _known: dict[tuple[object, ...], tuple[str, float]] = field(default_factory=dict)

    def kernel(self, work: Work) -> tuple[str, float]:
        """What a kernel's time is spent on, and its seconds. Raises `NotModelled` for a type that the card has no peak of."""
        asked = work.operation, work.flops, work.nbytes, work.form
        if asked not in self._known:
            self._known[asked] = self._timed(work)
        return self._known[asked]

    def _timed(self, work: Work) -> tuple[str, float]:
        if not work.flops:
            return MEMORY, memory_seconds(self.curves, self.card, work.nbytes * slower(work.operation))
        assert work.form
        shape, dtype = work.form
        operation = work.operation.removesuffix(BACKWARD)
        if operation.endswith(EXPERTS):
            return PRODUCTS, self._experts(work)
        if operation not in KERNELS:
            (count, m, n, k), name = shape, self.arithmetic(work)
            most = self.most(self.read_as(work))
            product = partial(matmul_seconds, self.curves, self.card, m, n, k, dtype=name, most=most)
            if operation.endswith(PACKED):
                return PRODUCTS, product(batch=count, quantize=bool(self.quantizes(work)), moved=work.nbytes)
            if operation == GROUPED:
                return PRODUCTS, count * product(moved=work.nbytes / count)
            return PRODUCTS, product(batch=count, moved=work.nbytes)
        _, queries, keys, size, causal = shape
        if queries == 1 and not work.operation.endswith(BACKWARD):
            return ATTENTION, decode_seconds(self.curves, self.card, work.nbytes, self.most(CACHED))
        return ATTENTION, self._attention(work, KERNELS[operation], dtype, (size, queries, keys), bool(causal))

    def _experts(self, work: Work) -> float:
        """Of a card of which no such kernels were measured, as two products of equal sizes for each expert."""
        assert work.form
        kind, (touched, rows, n, k, _) = experts_type(_stored(work)), work.form[0]
        quantized = IN_MXFP8.get(kind) if self.mxfp8 else None
        if quantized in self.curves.experts.get(self.engine, {}):
            kind = quantized
        most, known = self.most(self.read_as(work)), measured_experts(self.curves, self.card, self.engine, kind)
        if known is not None:
            return experts_seconds(known, self.card, kind, work.form[0], work.nbytes, most)
        sizes, half = (-(-rows // touched), -(-n // 2), k), work.nbytes / 2
        return 2 * matmul_seconds(self.curves, self.card, *sizes, touched, self.arithmetic(work), moved=half, most=most)

    def most(self, kind: str) -> float:
        """Bytes that all multiprocessors read in a second; endless where their number does not bind."""
        fact, cores = self.reading.get(kind), self.card.multiprocessors
        return fact.value * cores.value * 1e9 if fact and cores else inf

    def read_as(self, work: Work) -> str:
        """As what a product's weights are read, as `reading` names it."""
        name = self.arithmetic(work)
        return UNPACKED if _stored(work) and name not in ARITHMETIC.values() else DTYPES[name][1]

    def quantizes(self, work: Work) -> str:
        """The type that a product's operand is turned into before it, as its time counts; nothing where none is."""
        name = self.arithmetic(work) if work.form and work.operation.endswith(PACKED) else ""
        return name if name in ARITHMETIC.values() else ""

    def arithmetic(self, work: Work) -> str:
        """The type that a product is computed in: that of its operands; or that of weights as they are stored, where the card has
        such products, and else unpacks them on the way."""
        assert work.form
        name = ARITHMETIC.get(_stored(work), "")
        if name in self.curves.matmul and DTYPES[name][0] in self.card.peak:
            return name
        dtype = work.form[1].name
        return "tf32" if self.tf32 and dtype == "float32" else TYPES.get(dtype, dtype)

    def _attention(self, work: Work, kernel: str, dtype: DType, sizes: tuple[int, int, int], causal: bool) -> float:
        """`sizes`: of a head, queries and keys. A tile's queries go through all keys, and one that is not full takes as long."""
        longer = shared().triton_attention.value if kernel == "triton" else 1.0
        if self.engine and SERVED in self.curves.attention:
            kernel = SERVED
        if kernel not in self.curves.attention:
            kernel = SUBSTITUTES[kernel]
        direction: Direction = "backward" if work.operation.endswith(BACKWARD) else "forward"
        size, queries, keys = sizes
        flops = work.flops * -(-queries // TILE) * TILE / queries if queries < keys else work.flops
        return longer * attention_seconds(self.curves, self.card, flops, size, keys, causal, direction, kernel, dtype.name)


def _stored(work: Work) -> str:
    """The format in which the weights of a product are stored; nothing where they are not quantized."""
    return work.operation.removesuffix(PACKED).removesuffix(EXPERTS) if work.operation.endswith((PACKED, EXPERTS)) else ""


@dataclass(slots=True)
class Spent:
    """Seconds of one pass of a phase, by what they are spent on, and how many kernels ran."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    kernels: float = 0.0


def spent(works: Iterable[tuple[Work, int]], clock: Timer, passes: int) -> Spent:
    """Kernels with how often they run, in one of the `passes` that they stand for."""
    found = Spent()
    for work, times in works:
        kind, seconds = clock.kernel(work)
        found.seconds[kind] += seconds * times / passes
        found.kernels += times / passes
    return found
