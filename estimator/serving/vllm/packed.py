"""How vLLM packs caches of layers that keep several things of one token: windows, compressed keys, and what these are made of.

After v1/core/kv_cache_planning.py (`_get_packed_kv_cache_groups`, `_approximate_gcd`), models/deepseek_v4/attention.py,
compressor.py and v1/attention/backends/mla/sparse_swa.py (`get_kv_cache_spec` of each) of 0.33. A page is filled up to what a
kernel's rows are a multiple of; a group has pages of different sizes side by side, and a block of the pool is as wide as the
widest group. All are kept whole on every rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from estimator.families.cache_layers import CacheLayer, indexer_bytes
from estimator.serving.vllm.cache_groups import FLOAT32, Groups, Kept

BLOCK, WINDOW_BLOCK = 256, 64
"""Tokens of a block, and of one of a window."""
PARTIAL_BLOCKS = {4: 4, 128: 8}
"""Tokens of a block of what compressed keys are made of, by how many they stand for."""
KEY = 584
"""Bytes of a key of 512 numbers: 448 in FP8 with 8 of scales, and what is rotated in 16 bits (`fp8_ds_mla`)."""
ROWS = 576
"""What a page's bytes are a multiple of."""


def packed(layers: Sequence[CacheLayer]) -> Groups:
    """All layers as groups of different pages. Layers of which a request takes the same blocks are together; those with as many
    pages of each size are cut to groups of equally many, so that as few as possible are filled up."""
    buckets: dict[tuple[str, int, int | None], list[int]] = {}
    for layer in layers:
        kept = _page(layer)
        buckets.setdefault((kept.kind, kept.block, kept.tokens), []).append(kept.page)
    counted = {key: Counter(pages) for key, pages in buckets.items()}
    even = {key: max(sizes.values()) for key, sizes in counted.items() if len(set(sizes.values())) == 1}
    floor = max(even[key] for key, sizes in counted.items() if key in even and len(sizes) > 1)
    each = _least_padding(list(even.values()), floor)
    groups = []
    for (kind, block, tokens), sizes in counted.items():
        key = kind, block, tokens
        if key not in even:
            groups.append(Kept(kind, block, sum(size * times for size, times in sizes.items()), tokens))
            continue
        many = -(-even[key] // each)
        groups += [Kept(kind, block, sum(sizes) * -(-(even[key] - at) // many), tokens) for at in range(many)]
    return Groups(tuple(groups), 1, 0)


def _page(layer: CacheLayer) -> Kept:
    """What one layer keeps of a block."""
    if layer.kind == "window":
        return Kept("window", WINDOW_BLOCK, _filled(WINDOW_BLOCK * KEY), layer.tokens)
    if layer.kind == "partial":
        block = PARTIAL_BLOCKS[layer.rate]
        return Kept("window", block, _filled(block * layer.key_size * FLOAT32), layer.tokens)
    each = indexer_bytes(layer) if layer.kind == "indexer" else KEY
    return Kept("full", BLOCK, _filled(BLOCK // layer.rate * each))


def _filled(nbytes: int) -> int:
    return -(-nbytes // ROWS) * ROWS


def _least_padding(sizes: list[int], floor: int) -> int:
    """How many to a group, `floor` at least, so that the fewest are filled up; of equally good ones the most."""
    return min(range(floor, max(sizes) + 1), key=lambda each: (sum(-size % each for size in sizes), -each))
