"""SGLang's pool of models with compressed keys (DeepSeek V4): what a token takes, and what is set aside for each request.

After sglang/srt/model_executor/pool_configurator.py (`DSV4PoolConfigurator`), mem_cache/deepseek_v4_memory_pool.py,
kernels/ops/attention/dsv4/kv_layout.py, arg_groups/deepseek_v4_hook.py and arg_groups/model_overrides/deepseek_v4.py of 0.5.23.
Every rank has all of it. With layers that keep a key of every 4 tokens, or of every 128, and windows of all layers,

    bytes of a token = r x bytes of a token in windows + layers of 4 x (key / 4 + indexer's key / 4) + layers of 128 x key / 128

where what keys of 4 tokens are made of lies beside the windows' pages, and what those of 128 are made of beside each request.
"""

from __future__ import annotations

from collections.abc import Iterable

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Serving
from estimator.families.cache_layers import CacheLayer, compresses, indexer_bytes
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.parallel.topology import Topology
from estimator.serving.sglang.settings import NEWEST, release
from estimator.serving.tensors import check_output_groups
from estimator.tape import dtypes

PAGE, RATIO, REQUESTS = 256, 0.1, 256
"""`page_size`, `swa_full_tokens_ratio` and `max_running_requests`, unasked."""
KEY, ROWS = 584, 576
"""Bytes of a key of 512 numbers, in FP8 with scales and what is rotated in 16 bits; what a page is filled up to a multiple of."""
RINGS = {4: 8, 128: 128}
"""Tokens of which a page of windows, or a request, keeps what compressed keys are made of, by how many they stand for."""
SHARED = 4
"""The rate of those that lie beside pages of windows."""


def page_size(job: Job, spec: ModelSpec, card: Capacity) -> int | None:
    return PAGE if compresses(spec.cache_layers) else None


def kv_cache(job: Job, spec: ModelSpec, card: Capacity) -> str | None:
    return "fp8" if compresses(spec.cache_layers) else None


def swa_full_tokens_ratio(job: Job, spec: ModelSpec, card: Capacity) -> float | None:
    return RATIO if compresses(spec.cache_layers) else None


def max_running_requests(job: Job, spec: ModelSpec, card: Capacity) -> int | None:
    return REQUESTS if compresses(spec.cache_layers) else None


def check_compressed(asked: Serving, spec: ModelSpec, place: Topology) -> None:
    """Raise `InvalidJob` or `NotModelled` for what SGLang does not do with such models, or is not modelled doing."""
    if not compresses(spec.cache_layers):
        return
    kind, newest = spec.model_type, ".".join(map(str, NEWEST))
    if release(asked.engine_version) < NEWEST:
        raise NotModelled(
            f"{kind} models are modelled as SGLang {newest} runs them: releases before 0.5.18 held scales of their experts in "
            "float32, and with Marlin's kernels a second time",
            "serving.engine_version",
        )
    if asked.kv_cache != "fp8":
        raise NotModelled(f"{kind} models with a cache in FP8 are modelled: write fp8, or leave it out", "serving.kv_cache")
    if (asked.page_size or PAGE) % PAGE:
        raise Contradiction(f"SGLang's pages of {kind} models have {PAGE} tokens: leave it out", "serving.page_size")
    if asked.speculative_algorithm is not None:
        raise NotModelled(f"guessing ahead is not modelled of {kind} models in SGLang", "serving.speculative_algorithm")
    check_output_groups(spec, place)


def token_bytes(layers: Iterable[CacheLayer], page: int) -> float:
    """Of a token in compressed keys and an indexer's, whose pages are filled up."""
    found = 0.0
    for layer in layers:
        if layer.kind == "compressed":
            found += _page_bytes(page // layer.rate) / page
        elif layer.kind == "indexer":
            found += indexer_bytes(layer) / layer.rate
    return found


def windowed_bytes(layers: Iterable[CacheLayer], page: int) -> int:
    """Of a token in windows, with what keys of 4 tokens are made of, of which each page of windows keeps a ring."""
    found = 0.0
    for layer in layers:
        if layer.kind == "window":
            found += _page_bytes(page) / page
        elif layer.kind == "partial" and layer.rate == SHARED:
            found += RINGS[SHARED] * layer.key_size * dtypes.float32.itemsize / page
    return round(found)


def request_bytes(layers: Iterable[CacheLayer], requests: int) -> int:
    """Set aside for so many requests: what keys of 128 tokens are made of, in rings, of which there are two more."""
    rings = [layer for layer in layers if layer.kind == "partial" and layer.rate != SHARED]
    return sum(
        _up((requests + 1) * RINGS[layer.rate] + RINGS[layer.rate] + 1, layer.rate) * layer.key_size * dtypes.float32.itemsize
        for layer in rings
    )


def _page_bytes(entries: int) -> int:
    return _up(entries * KEY, ROWS)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
