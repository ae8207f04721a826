"""FlashAttention-3, in half precision on Hopper: what it keeps for backward, and holds in it.

Dao-AILab/flash-attention, hopper/flash_attn_interface.py (`FlashAttnFunc`) and flash_api.cpp (`mha_fwd`, `mha_bwd`), as
transformers calls it (integrations/flash_attention.py). Shapes are [batch, heads, tokens, head size]; keys and values may have
fewer heads.
"""

from __future__ import annotations

from functools import partial

from estimator.contract.errors import NotModelled
from estimator.tape import dtypes
from estimator.tape.attention import Kernel, fused, rounded
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, empty

HEADS = (64, 96, 128, 192, 256)
"""Sizes of a head that there are kernels of; others are computed as the next (`round_up_headdim`)."""
WHERE = "training.attention"


def flash_3(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Saves q, k, v, its output, laid out by token, and a float32 log-sum-exp per query. It drops nothing out.

    float32 arguments are cast to autocast's type before, in the graph. Causal attention counts its tiles in four bytes.
    """
    context, size = q.tape.autocast, q.shape[3]
    if size != v.shape[3] or size % 8 or size > HEADS[-1]:
        raise NotModelled(
            f"flash_attention_3 with heads of {size} and {v.shape[3]} is not modelled, but of equal multiples of 8 up to "
            f"{HEADS[-1]}; write sdpa",
            WHERE,
        )
    if context is not None:
        q, k, v = (to(t, context.dtype) for t in (q, k, v))
    kernel = Kernel("flash_attention_3", True, False, partial(_held, causal=causal), gradients_by_token=False)
    tiles = empty(q.tape, (1,), dtypes.int32, "tile_count_semaphore") if causal else None
    out = fused(kernel, (q, k, v), q.shape[:3], [], causal=causal)
    del tiles
    return out


def _held(q: Tensor, k: Tensor, out: Tensor, causal: bool) -> object:
    """What backward holds beside its results: two float32 numbers per query, its gradient in float32, those of keys and
    values too where heads share them, and a count per block of queries."""
    tape, (batch, heads, tokens, size) = q.tape, q.shape
    width = next(limit for limit in HEADS if size <= limit)
    rows, columns = _block(width, causal)
    queries, keys = rounded(tokens, rows), rounded(k.shape[2], columns)
    held = [empty(tape, (batch, heads, queries), dtypes.float32, name) for name in ("softmax_d", "softmax_lse_log2")]
    held.append(empty(tape, (batch, heads, queries * width), dtypes.float32, "dq_accum"))
    if k.shape[1] != heads:
        held += [empty(tape, (batch, k.shape[1], keys * width), dtypes.float32, name) for name in ("dk_accum", "dv_accum")]
    return [*held, empty(tape, (queries // rows, batch, heads), dtypes.int32, "dq_semaphore")]


def _block(width: int, causal: bool) -> tuple[int, int]:
    """Queries and keys of one block on compute capability 9.0 (`kBlockM_sm90`, `kBlockN_sm90`)."""
    rows = {64: 128, 128: 64 if causal else 80}.get(width, 64)
    return rows, {192: 96, 256: 80}.get(width, 128)
