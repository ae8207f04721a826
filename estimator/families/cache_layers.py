"""What the layers of a model keep of a sequence while an engine serves it, so that no token is computed twice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

SCALED_TOGETHER = 128
"""Numbers of an indexer's key that share a scale (vllm/model_executor/models/deepseek_v2.py, `quant_block_size`)."""


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """One layer's part of the cache.

    `full`: keys and values of all tokens. `window`: of the last `tokens`. `chunk`: of those in the same `tokens`. `latent`: one
    vector of `key_size` numbers for each token, which all heads share; they look at `tokens` of them, or at all. `indexer`: a key
    of `key_size` numbers for each token, by which is chosen what a layer of latent attention looks at. `cross`: keys and values
    of an encoder's `tokens`. `compressed`: one vector of `key_size` numbers for every `rate` tokens, which all heads share; they
    look at `tokens` of them, or at all. `partial`: `key_size` numbers in float32 for each of the last `tokens`, of which vectors
    for every `rate` tokens are made. `state`: `state` numbers for a sequence, however long it is, of which `convolved` are the
    last inputs of a convolution of `channels`; the others are in float32 where they are `wide`.

    `heads` have keys of their own, of `key_size` numbers each, and values of `value_size`.
    """

    kind: Literal["full", "window", "chunk", "latent", "indexer", "cross", "state", "compressed", "partial"]
    heads: int = 1
    key_size: int = 0
    value_size: int = 0
    tokens: int | None = None
    state: int = 0
    convolved: int = 0
    wide: bool = False
    channels: int = 0
    rate: int = 1
    """Tokens that an entry stands for, of compressed keys and of an indexer's."""
    scaled: bool = True
    """Whether an indexer's keys are in FP8 with scales; else they are as what they choose is, or in 16 bits."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An image at its largest, or a clip at its longest, as an engine's processor makes it: `tokens` of the language model, of so
    many `numbers`. `levels`: layers of the tower that the language model reads. `patches`: of the tower, where these do not fill
    it; of a clip its frames."""

    tokens: int
    numbers: int
    levels: int = 1
    patches: int | None = None


@lru_cache(maxsize=256)
def attention(heads: int, size: int, window: int | None = None) -> CacheLayer:
    """A layer of `heads` key heads of `size` numbers, that looks back `window` tokens or, with None, at all."""
    return CacheLayer("full" if window is None else "window", heads, size, size, window)


def latent(size: int, chosen: int | None = None) -> CacheLayer:
    """A layer of latent attention: `size` numbers for a token, the rotated part of its key among them. `chosen`: tokens that an
    indexer lets it look at; None: all."""
    return CacheLayer("latent", 1, size, tokens=chosen)


def indexer(size: int) -> CacheLayer:
    """An indexer's keys of `size` numbers, which engines keep in FP8, with a scale of four bytes for each 128."""
    return CacheLayer("indexer", 1, size)


def indexer_bytes(layer: CacheLayer) -> int:
    """Bytes of a token's key of an indexer, whatever type the cache is in."""
    if not layer.scaled:
        return 2 * layer.key_size
    return layer.key_size + -(-layer.key_size // SCALED_TOGETHER) * 4


def mamba_state(inner: int, convolved: int, states: int, kernel: int, wide: bool = False) -> CacheLayer:
    """A Mamba mixer: the last inputs of a convolution of `convolved` channels, and `states` numbers for each of `inner`, in
    float32 where they are `wide`."""
    last = convolved * (kernel - 1)
    return CacheLayer("state", state=last + inner * states, convolved=last, wide=wide, channels=convolved)


def convolution_state(channels: int, kernel: int) -> CacheLayer:
    """A short convolution: its last inputs."""
    last = channels * (kernel - 1)
    return CacheLayer("state", state=last, convolved=last, channels=channels)


def delta_state(heads: int, size: int, kernel: int) -> CacheLayer:
    """Kimi Delta Attention: the last inputs of one convolution of queries, keys and values, and a matrix of each head in float32
    (vllm/model_executor/layers/mamba/mamba_utils.py, `kda_state_shape`, `kda_state_dtype`; sglang/srt/configs/mamba_utils.py,
    `KimiLinearStateShape`)."""
    channels = 3 * heads * size
    last = channels * (kernel - 1)
    return CacheLayer("state", state=last + heads * size * size, convolved=last, wide=True, channels=channels)


def compressed(size: int, rate: int, chosen: int | None = None) -> tuple[CacheLayer, ...]:
    """One vector of `size` numbers for every `rate` tokens, and what it is made of: a key and its score of each token, of two
    windows where an indexer lets a layer look at `chosen` of them, since these overlap (DeepSeek V4; vllm/models/deepseek_v4/
    compressor.py, `CompressorStateCache`)."""
    windows = 1 if chosen is None else 2
    kept = CacheLayer("compressed", 1, size, tokens=chosen, rate=rate)
    return kept, CacheLayer("partial", 1, 2 * windows * size, tokens=windows * rate, rate=rate)


def compresses(layers: tuple[CacheLayer, ...]) -> bool:
    """Whether keys of several tokens are kept as one."""
    return any(layer.kind == "compressed" for layer in layers)
