"""The cache of keys and values that each attention layer of a served model keeps."""

from __future__ import annotations

from estimator.dtypes import DType, int64
from estimator.tape.tape import KV_CACHE, Tape
from estimator.tape.tensor import Tensor, alias, empty

PAGE = 16
"""Tokens in a block of vLLM's cache (`--block-size`, default on CUDA)."""


class DynamicCache:
    """transformers' default: keys and values of one layer are joined anew at every step (cache_utils.py, `DynamicLayer`)."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.keys = _joined(self.keys, k)
        self.values = _joined(self.values, v)
        return self.keys, self.values


class SlidingCache:
    """The same where attention has a sliding window (`DynamicSlidingWindowLayer`): of what was joined the last tokens stay,
    as views of it, one fewer than the window; and old keys and values live until both new ones are there."""

    def __init__(self, window: int):
        self.window = window
        self.held: tuple[Tensor, ...] = ()
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if not self.held:
            with k.tape.counting(KV_CACHE):
                self.held = (empty(k.tape, (), int64, "sliding_window"),)
        keys = _joined(self.keys, k)
        values = _joined(self.values, v)
        self.keys, self.values = self._last(keys), self._last(values)
        return keys, values

    def _last(self, x: Tensor) -> Tensor:
        batch, heads, tokens, size = x.shape
        return alias(x, (batch, heads, min(tokens, self.window - 1), size), x.element_strides())


def _joined(before: Tensor | None, new: Tensor) -> Tensor:
    batch, heads, tokens, size = new.shape
    length = tokens + (before.shape[2] if before is not None else 0)
    with new.tape.counting(KV_CACHE):
        return empty(new.tape, (batch, heads, length, size), new.dtype, "cat")


class PagedCache:
    """vLLM's: blocks of tokens, allocated before the first request, written in place and read by the kernel."""

    def __init__(self, tape: Tape, tokens: int, heads: int, size: int, dtype: DType):
        with tape.counting(KV_CACHE):
            self.blocks = empty(tape, (2, tokens, heads, size), dtype, "kv_cache")

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        batch, heads, _, size = k.shape
        per_sequence = (batch, heads, self.blocks.shape[1] // batch, size)
        return alias(self.blocks, per_sequence), alias(self.blocks, per_sequence)


def page_aligned(tokens: int) -> int:
    """Tokens rounded up to whole blocks."""
    return -(-tokens // PAGE) * PAGE


def bytes_per_token(layers: int, heads: int, size: int, dtype: DType) -> int:
    """Keys and values of one token in every layer: 2 x layers x heads x size x bytes of an element."""
    return 2 * layers * heads * size * dtype.itemsize
