"""The cache of keys and values that each attention layer of a served model keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from estimator.families.protocols import Cache
from estimator.families.spec import DecoderSpec
from estimator.tape.dtypes import DType, int64, promote
from estimator.tape.slots import Slot
from estimator.tape.tape import KV_CACHE
from estimator.tape.tensor import Tensor, alias, empty, moved
from estimator.tape.views import cat


class DynamicCache:
    """transformers' default: keys and values of one layer are joined anew at every step (cache_utils.py, `DynamicLayer`).

    They are joined to nothing in the keys' type at first, so values are kept in that if it is the wider.
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.keys = _joined(self.keys, k, k.dtype)
        self.values = _joined(self.values, v, k.dtype)
        return self.keys, self.values


class PassingCache:
    """The cache of a model that is trained: there is one only while the model writes."""

    def __init__(self, make: Callable[[], Cache], slot: Slot | None):
        self.make, self.slot = make, slot
        self.cache: Cache | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if k.tape.caching:
            self.cache = self.make()
        if k.tape.generating is None and not k.tape.caching:
            return k, v
        self.cache = self.cache or self.make()
        return self.cache.update(k, v)


class SlidingCache:
    """The KV cache of a layer with a sliding window (`DynamicSlidingWindowLayer`): of old and new tokens, joined, it keeps the
    last, one fewer than the window, as views; old keys and values live until both new ones are there."""

    def __init__(self, window: int):
        self.window = window
        self.held: tuple[Tensor, ...] = ()
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if not self.held:
            with k.tape.counting(KV_CACHE):
                self.held = (empty(k.tape, (), int64, "sliding_window"),)
        keys = _joined(self.keys, k, k.dtype)
        values = _joined(self.values, v, k.dtype)
        self.keys, self.values = self._last(keys), self._last(values)
        return keys, values

    def _last(self, x: Tensor) -> Tensor:
        batch, heads, tokens, size = x.shape
        return alias(x, (batch, heads, min(tokens, self.window - 1), size), x.element_strides())


def growing(spec: DecoderSpec) -> Callable[[], Cache]:
    """What makes each attention layer the cache that transformers' `generate` gives it."""
    return DynamicCache if spec.window is None else partial(SlidingCache, spec.window)


def _joined(before: Tensor | None, new: Tensor, dtype: DType) -> Tensor:
    """Cached and new keys (or values) joined, [batch, heads, tokens, size]. While a model in training generates, the number of
    tokens is that of the pass, which may stand for many passes."""
    batch, heads, tokens, size = new.shape
    writing = new.tape.generating
    if new.tape.caching:
        return cat((new,), 2, promote(dtype, new.dtype))
    length = writing.length if writing else tokens + (before.shape[2] if before is not None else 0)
    with new.tape.counting(KV_CACHE):
        return empty(new.tape, (batch, heads, length, size), promote(dtype, new.dtype), "cat")


class HeldCache:
    """A cache in which every sequence has `length` tokens while the model writes. `joined`: it is copied at each step, as
    transformers' `DynamicLayer` copies it, not written in place."""

    def __init__(self, length: int, dtype: DType, joined: bool):
        self.length, self.dtype, self.joined = length, dtype, joined

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return (k, v) if k.shape[2] > 1 else (self._held(k), self._held(v))

    def _held(self, x: Tensor) -> Tensor:
        batch, heads, _, size = x.shape
        held = empty(x.tape, (batch, heads, self.length, size), self.dtype, "cat")
        if self.joined:
            moved("cat", held, held)
        return held


def bytes_per_token(layers: int, heads: int, size: int, dtype: DType) -> int:
    """Keys and values of one token in every layer: 2 x layers x heads x size x bytes of an element."""
    return 2 * layers * heads * size * dtype.itemsize
