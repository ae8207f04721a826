"""SGLang's pools: how many tokens and states a number of bytes is for, and how many requests those are.

After sglang/srt/model_executor/pool_configurator.py (`DefaultPoolConfigurator`, `HybridSWAPoolConfigurator`) and
mem_cache/kv_cache_configurator.py (`_handle_max_mamba_cache`, `resolve_max_num_reqs`, `_calculate_mamba_ratio`) of 0.5.23;
before, model_executor/model_runner.py and model_runner_kv_cache_mixin.py.

All layers that keep tokens share one number of tokens, but for layers with a window, in models of which it knows them:

    states = rest x m / (1 + m) // bytes of a sequence's states
    tokens = (rest - states) // (bytes of a token in full layers + r x bytes of a token in windowed ones),  windows = r x tokens
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

from estimator.contract.job import Serving
from estimator.families.cache_layers import CacheLayer, compresses, indexer_bytes
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.serving.sglang import compressed
from estimator.serving.sglang.settings import PADDED_STATES, PAGE, RATIO, STATES, release
from estimator.serving.sglang.speculation import draft_layers
from estimator.tape import dtypes

CONVOLVED, RECURRENT = dtypes.bfloat16.itemsize, dtypes.float32.itemsize
"""Bytes of a number of a convolution's last inputs, and of a recurrent state (configs/mamba_utils.py, `mamba2_state_dtype`)."""
SCALES = 80
"""Bytes more that a token's latent in FP8 takes beside an indexer: scales, and what is rotated in 16 bits
(mem_cache/kv_cache_configurator.py, `calculate_mla_kv_cache_dim`)."""
FP4_BLOCK = 16
"""Numbers of four bits that share a scale of a byte."""
SLOTS, SLOTS_WITH_ATTENTION = 3, 5
"""States of a running request: its own and those that its prefix is kept by; two more where steps overlap, which is modelled
beside attention only (`MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO`, `get_mamba_tracking_slots`)."""
FEWEST, MOST, OF_CONTEXT = 2048, 4096, 512
"""Requests at the same time, unless a number is asked for."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Bytes of one rank: of a token in all layers that see everything, of one in those with a window, of a sequence's states."""

    full: float
    windowed: int
    states: int
    window: int = 0
    """Tokens that a layer with a window looks back."""
    heard: int = 0
    """Tokens of an encoder, which lie in the same pool."""
    attends: bool = True
    fixed: int = 0
    """Bytes that are set aside for requests, however many tokens they have."""

    def token(self, ratio: float) -> float:
        """Bytes of a token of the pool, beside which there are `ratio` in layers with a window."""
        return self.full + ratio * self.windowed if self.full else self.windowed


def cells(spec: ModelSpec, serving: Serving, tensor: int, raw: bool = False, here: range | None = None) -> Cells:
    """What layers keep on one of `tensor` ranks: latents are not divided, key heads copied where there are fewer than ranks.
    `raw`: whether latents in FP8 that an indexer chooses from have no scales beside them; `here`: the layers of a stage."""
    since = spec.window_pool
    apart = since is not None and release(serving.engine_version) >= release(since)
    layers = _layers(spec)
    if here is not None:
        layers = tuple(layer for layer, at in zip(layers, spec.cache_places, strict=True) if at in here)
    if compresses(layers):
        page = serving.page_size or compressed.PAGE
        requests = max(1, (serving.max_running_requests or compressed.REQUESTS) // (serving.attn_dp_size or 1))
        return Cells(
            compressed.token_bytes(layers, page),
            compressed.windowed_bytes(layers, page),
            0,
            max(layer.tokens or 0 for layer in layers if layer.kind == "window"),
            fixed=compressed.request_bytes(layers, requests),
        )
    kept = [layer for layer in layers if layer.kind != "state"]
    windowed = [layer for layer in kept if apart and layer.kind in ("window", "chunk")]
    full = [layer for layer in kept if layer not in windowed]
    keys = [layer for layer in full if layer.kind == "indexer"]
    others, more = [layer for layer in full if layer.kind != "indexer"], _idle(spec) + draft_layers(serving, spec)
    indexed = sum(_chosen_by(layer, serving) for layer in keys) * (len(keys) + draft_layers(serving, spec)) // max(1, len(keys))
    return Cells(
        _bytes(others, serving, tensor, raw) * (len(others) + more) // max(1, len(others)) + indexed,
        _bytes(windowed, serving, tensor, raw),
        sum(_state_bytes(layer) // tensor for layer in spec.cache_layers if layer.kind == "state"),
        max((layer.tokens or 0 for layer in windowed), default=0),
        max((layer.tokens or 0 for layer in kept if layer.kind == "cross"), default=0),
        bool(kept),
    )


def _chosen_by(layer: CacheLayer, serving: Serving) -> int:
    """Bytes of a token's key of an indexer; without scales they are in the cache's type (`get_minimax_sparse_index_dtype`)."""
    return layer.key_size if serving.kv_cache == "fp8" and not layer.scaled else indexer_bytes(layer)


def _layers(spec: ModelSpec) -> tuple[CacheLayer, ...]:
    """The layers of the cache; of an encoder those that attend, whose keys and values have room as a decoder's do."""
    if not spec.pooled_in_sglang:
        return spec.cache_layers
    from estimator.families.encoders import PostNormSpec

    assert isinstance(spec, PostNormSpec)
    size = spec.hidden_size // spec.num_attention_heads
    return (CacheLayer("full", spec.num_attention_heads, size, size),) * spec.depth


def _bytes(layers: list[CacheLayer], serving: Serving, tensor: int, raw: bool) -> int:
    """Of a token in these layers, those that keep alike together, as blocks of four-bit numbers are cut."""
    total = 0
    for layer, alike in groupby(layers):
        heads = layer.heads if layer.kind == "latent" else max(1, layer.heads // tensor)
        numbers = heads * (layer.key_size + layer.value_size) * len(list(alike))
        if serving.kv_cache == "fp8" and layer.kind == "latent" and layer.tokens and not raw:
            numbers += SCALES * numbers // layer.key_size
        if serving.kv_cache == "fp4":
            total += numbers // 2 + numbers // FP4_BLOCK
        else:
            total += numbers * dtypes.BY_NAME[serving.kv_cache].itemsize
    return total


def _idle(spec: ModelSpec) -> int:
    """Layers that the pool has room for and that keep nothing: an encoder's (configs/model_config.py, `num_attention_layers`)."""
    crosses = sum(1 for layer in spec.cache_layers if layer.kind == "cross")
    if not crosses or isinstance(spec.language_model, DecoderSpec):
        return spec.idle_in_sglang
    return max(0, spec.depth + crosses - len(spec.cache_layers))


def _state_bytes(layer: CacheLayer) -> int:
    return layer.convolved * CONVOLVED + (layer.state - layer.convolved) * RECURRENT


@dataclass(frozen=True, slots=True)
class Pools:
    """Tokens that layers which see everything have room for, and those with a window; sequences' states; requests at the same
    time; and the bytes of it all."""

    tokens: int
    windowed: int
    states: int
    running: int
    nbytes: int


def ratios(serving: Serving) -> tuple[float, float]:
    """Tokens of windows as a share of the others, and memory of states as a share of the rest."""
    return serving.swa_full_tokens_ratio or RATIO, serving.mamba_full_memory_ratio or STATES


def slots(serving: Serving, each: Cells) -> int:
    """States that a running request takes."""
    if serving.disable_radix_cache or not each.states:
        return 1
    return SLOTS_WITH_ATTENTION if each.attends else SLOTS


def pools(rest: int, each: Cells, serving: Serving) -> Pools:
    """What `rest` bytes are made of."""
    window, state = ratios(serving)
    page, padding = serving.page_size or PAGE, int(release(serving.engine_version) >= PADDED_STATES)
    states = taken = 0
    if each.states:
        states = int(rest * state / (1 + state) // each.states) - padding
        if serving.disable_radix_cache and serving.max_running_requests:
            states = serving.max_running_requests
        states = max(0, states)
        taken = (states + padding) * each.states if states else 0
    cell = each.token(window)
    taken += each.fixed
    tokens = int(max(0, rest - taken) // cell) if cell else serving.max_total_tokens or serving.context
    tokens = max(0, min(tokens, serving.max_total_tokens or tokens)) // page * page
    windowed = int(tokens * window) // page * page if each.windowed else 0
    asked = serving.max_running_requests
    most = (
        max(1, asked // (serving.attn_dp_size or 1))
        if asked
        else max(min(int(tokens / serving.context * OF_CONTEXT), MOST), FEWEST)
    )
    running = min(most, tokens // 2)
    if each.states:
        running = min(running, states // slots(serving, each))
    held = math.ceil(tokens * each.full) + windowed * each.windowed + taken
    return Pools(tokens, windowed, states, running, held)


def needed_bytes(each: Cells, serving: Serving) -> int:
    """Bytes that make pools in which the job's requests have room, all of them at the same time, or a part's share of them."""
    window, state = ratios(serving)
    requests = -(-serving.concurrency // (serving.attn_dp_size or 1))
    page, length = serving.page_size or PAGE, serving.context + each.heard
    tokens = -(-length // page) * page * requests
    if each.windowed:
        tokens = max(tokens, math.ceil(in_window(each, serving) * requests / window))
    keys = math.ceil(-(-tokens // page) * page * each.token(window)) + each.fixed
    if not each.states:
        return keys
    padding = int(release(serving.engine_version) >= PADDED_STATES)
    states = (requests * slots(serving, each) + padding) * each.states
    if serving.disable_radix_cache and serving.max_running_requests:
        return keys + (serving.max_running_requests + padding) * each.states
    return math.ceil(max(states * (1 + state) / state, keys * (1 + state)))


def in_window(each: Cells, serving: Serving) -> int:
    """Tokens of the pool for windows that a request takes (mem_cache/allocator/swa.py: a page more than the window)."""
    return min(serving.context, each.window + (serving.page_size or PAGE))


def concurrency(found: Pools, each: Cells, serving: Serving) -> float:
    """Requests as long as the context that have room at the same time."""
    length = serving.context + each.heard
    most = [float(found.running)]
    if each.full or each.windowed:
        most.append(found.tokens / length)
    if each.windowed:
        most.append(found.windowed / in_window(each, serving))
    return min(most)
