"""llama.cpp's caches: how many tokens each has room for, and the largest pass beside them.

After llama.cpp's src/llama-context.cpp, src/llama-kv-cache.cpp and src/llama-kv-cache-iswa.cpp.
"""

from __future__ import annotations

from estimator.contract.errors import Contradiction
from estimator.contract.job import Serving
from estimator.families.spec import ModelSpec
from estimator.quantization.gguf_kinds import block
from estimator.serving.llamacpp.latents import indexer_of, latent_of
from estimator.serving.llamacpp.mixers import mixers_of, state_of
from estimator.serving.llamacpp.models import (
    heads_of,
    most_values,
    sharing_of,
    sliding,
    thinned_of,
    value_head,
    whole_keys,
    window,
)
from estimator.serving.llamacpp.shape import Batch
from estimator.serving.llamacpp.types import NAMES

CELLS = 256
"""Tokens that a sequence's cache is rounded up to (src/llama-context.cpp)."""
UBATCH = 512
"""Tokens of a pass, where a job does not say."""
TURNED = 64
"""Numbers of values that are turned together, at least, before they are cached in blocks."""


ATTENDING = ("attention", "both")
"""Layers that cache keys and values, by what they are."""


def streams(serving: Serving) -> int:
    """Caches of their own."""
    return 1 if serving.kv_unified else serving.concurrency


def cells(serving: Serving) -> int:
    """Tokens that each cache has room for: of a sequence, or of all that share it."""
    shared = serving.concurrency if serving.kv_unified else 1
    return _padded(serving.context * shared)


def window_cells(serving: Serving, spec: ModelSpec) -> int:
    """Of a layer with a sliding window: the windows of all sequences that share it and a pass beside them."""
    if serving.swa_full:
        return cells(serving)
    seen = window(spec) * (serving.concurrency if serving.kv_unified else 1)
    return _padded(min(cells(serving), seen + (serving.ubatch or UBATCH)))


def _padded(tokens: int) -> int:
    return -(-tokens // CELLS) * CELLS


def layer_caches(serving: Serving, spec: ModelSpec) -> list[int]:
    """Bytes of each layer's cache, of all sequences."""
    each, room = token_layers(serving, spec), {True: window_cells(serving, spec), False: cells(serving)}
    slides = sliding(spec) or [False] * spec.num_hidden_layers
    kept = [streams(serving) * room[own] * nbytes for own, nbytes in zip(slides, each, strict=True)]
    state, mixers = state_of(spec), mixers_of(spec)
    if state is None:
        return kept
    states = serving.concurrency * state.nbytes
    return [nbytes + states * (mixer not in ("attention", "none")) for nbytes, mixer in zip(kept, mixers, strict=True)]


def kinds(serving: Serving) -> tuple[str, str]:
    """The types of cached keys and values."""
    return serving.kv_cache, serving.values_cache or serving.kv_cache


def token_bytes(serving: Serving, spec: ModelSpec) -> tuple[int, int]:
    """Bytes of a token's keys and of its values in one layer; a latent is both, and lies with the keys."""
    keys, values = kinds(serving)
    if latent := latent_of(spec):
        return _row_bytes(keys, latent.rank + latent.rotary), 0
    _, heads, size = heads_of(spec)
    return _row_bytes(keys, heads * size), _row_bytes(values, _values(serving, spec, heads * value_head(spec)))


def _values(serving: Serving, spec: ModelSpec, own: int) -> int:
    """Numbers of a token's values that a layer's cache has room for: without flash attention as many as of any layer."""
    return most_values(spec) if serving.flash_attention is False else own


def cache_bytes(serving: Serving, spec: ModelSpec) -> int:
    """Bytes of a token's keys and values in one layer."""
    return sum(token_bytes(serving, spec))


def token_layers(serving: Serving, spec: ModelSpec) -> list[int]:
    """Bytes of a token's keys and values in each layer, 0 where it caches none."""
    if spec.encodes:
        return [0] * spec.num_hidden_layers
    each, wide = cache_bytes(serving, spec), 0
    if sharing := sharing_of(spec):
        width, (keys, values) = sharing.key_heads * sharing.head, kinds(serving)
        wide = _row_bytes(keys, width) + _row_bytes(values, _values(serving, spec, width))
    elif fewer := whole_keys(spec):
        head, (keys, values) = heads_of(spec)[-1], kinds(serving)
        wide = _row_bytes(keys, fewer * head) + _row_bytes(values, _values(serving, spec, fewer * value_head(spec)))
    slides, mixers = sliding(spec) or (False,) * spec.num_hidden_layers, mixers_of(spec)
    found = [wide if wide and not own else each for own in slides]
    if sharing:
        found = [nbytes * (sharing.kept[layer] == layer) for layer, nbytes in enumerate(found)]
    if thinned := thinned_of(spec):
        # without flash attention values have as much room in every layer, also in one that does not attend
        idle = token_bytes(serving, spec)[1] if serving.flash_attention is False else 0
        found = [nbytes if attends else idle for nbytes, (attends, _) in zip(found, thinned, strict=True)]
    if indexer := indexer_of(spec):
        more = index_bytes(serving, spec)
        found = [nbytes + more * own for nbytes, own in zip(found, indexer.layers, strict=True)]
    return [nbytes * (mixer in ATTENDING) for nbytes, mixer in zip(found, mixers, strict=True)] if mixers else found


def index_bytes(serving: Serving, spec: ModelSpec) -> int:
    """Bytes of a token's key in an indexer's cache, which has the type of the other keys."""
    indexer = indexer_of(spec)
    return _row_bytes(kinds(serving)[0], indexer.size) if indexer else 0


def _row_bytes(kind: str, width: int) -> int:
    chosen = block(NAMES.get(kind, kind.upper()))
    if width % chosen.elements:
        raise Contradiction(f"{width} numbers of a token are no blocks of {chosen.elements}: write fp16", "serving.kv_cache")
    return width // chosen.elements * chosen.nbytes


def batch_of(serving: Serving, spec: ModelSpec) -> Batch:
    """The largest pass that llama.cpp makes room for.

    Keys and values that are cached in blocks are turned before, where heads are of whole `TURNED` numbers
    (src/llama-kv-cache.cpp, `attn_rot_k`): keys in as many as fit a head. Latents are not (`build_attn_inp_k`).
    """
    room, sequences = cells(serving), serving.concurrency
    head = heads_of(spec)[-1]
    fits = [size > 0 and size % TURNED == 0 and latent_of(spec) is None for size in (head, value_head(spec))]
    keys, values = (own and kind not in NAMES for own, kind in zip(fits, kinds(serving), strict=True))
    most = head & -head
    tokens = min(serving.ubatch or UBATCH, room * streams(serving))
    tokens = -(-tokens // sequences) * sequences
    half = [kind == "fp16" for kind in kinds(serving)]
    key_bytes, value_bytes = (0, 0) if spec.encodes else token_bytes(serving, spec)
    return Batch(
        tokens=tokens,
        key_bytes=key_bytes,
        value_bytes=value_bytes,
        outputs=tokens if spec.encodes else min(tokens, serving.outputs or tokens),
        cells=room,
        flash=serving.flash_attention is not False,
        window_cells=window_cells(serving, spec),
        streams=streams(serving),
        sequences=sequences,
        turned_keys=most if keys else 0,
        turned_values=TURNED if values else 0,
        unpacked_keys=not half[0],
        unpacked_values=not half[1],
        index_bytes=index_bytes(serving, spec),
    )
