"""Gated delta nets: layers with a state that each token decays and corrects, scanned in chunks of tokens.

After transformers' modeling_qwen3_next.py (5.23), `torch_chunk_gated_delta_rule` and `l2norm`, without the packages
flash-linear-attention and causal-conv1d: the path in plain torch, which holds every intermediate result and loops over the
chunks. The chunks between the first and the last all do the same, and share a slot.
"""

from __future__ import annotations

from estimator.families.mamba import scan_slots
from estimator.tape import dtypes
from estimator.tape.linalg import solve_triangular
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import (
    add,
    add_scalar,
    exp,
    mul,
    mul_scalar,
    rsqrt,
    sub,
    to_dense,
)
from estimator.tape.reduction import cumsum, sum_dim
from estimator.tape.selection import masked_fill
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import clone, expand, narrow, pad, reshape, select, transpose, unsqueeze, write_part

CHUNK = 64
"""Tokens of a chunk (`chunk_size`), which no configuration names."""
APART = 2
"""Chunks at each end that do what others do not. Nothing reads the state that the last leaves, so that in backward the one before
it is the first to make gradients of what changes the state; the first reads a state that wants none, so that the second is the
last to hold the queries."""
IN_TORCH = (
    "the gated delta rule runs as transformers' reference in plain torch, as it does without the packages "
    "flash-linear-attention and causal-conv1d; with their fused kernels it takes far less"
)


def _normalized(x: Tensor) -> Tensor:
    """`l2norm`: each vector of the last dimension by its length."""
    inverse = rsqrt(add_scalar(sum_dim(mul(x, x), -1, keepdim=True)))
    return mul(x, inverse)


def _repeated(x: Tensor, times: int) -> Tensor:
    """[batch, tokens, heads, size] with each head so many times, always copied (`repeat_interleave`)."""
    batch, tokens, heads, size = x.shape
    spread = expand(unsqueeze(x, 3), (batch, tokens, heads, times, size))
    return reshape(clone(spread), (batch, tokens, heads * times, size))


def _widened(*given: Tensor) -> list[Tensor]:
    return [to_dense(transpose(t, 1, 2), dtypes.float32) for t in given]


def _padded(missing: int, *given: Tensor) -> list[Tensor]:
    return [pad(t, 2, 0, missing) for t in given]


def _in_chunks(*given: Tensor) -> list[Tensor]:
    return [reshape(t, (*t.shape[:2], -1, CHUNK, t.shape[-1])) for t in given]


def _upper(tape: Tape) -> Tensor:
    ones = empty(tape, (CHUNK, CHUNK), dtypes.bool_, "ones")
    upper = empty(tape, (CHUNK, CHUNK), dtypes.bool_, "triu")
    del ones
    return upper


def _last(x: Tensor) -> Tensor:
    return unsqueeze(x, len(x.shape))


def chunk_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, unrolled: bool) -> Tensor:
    """What each token reads of the state: [batch, tokens, value heads, value size].

    `q` and `k` [batch, tokens, key heads, key size], `v` as the result, `g` and `beta` [batch, tokens, value heads]. Every local
    variable lives to the end.
    """
    dtype, tape = q.dtype, q.tape
    tape.remarks[IN_TORCH] = None
    batch, tokens, key_heads, key_size = k.shape
    heads, size = v.shape[2:]
    if key_heads != heads:
        q = _repeated(q, heads // key_heads)
        k = _repeated(k, heads // key_heads)
    q, k, v, beta, decay = _widened(q, k, v, beta, g)
    q = _normalized(q)
    k = _normalized(k)
    q = mul_scalar(q)
    missing = -tokens % CHUNK
    q, k, v = _padded(missing, q, k, v)
    beta, decay = _padded(missing, beta, decay)
    chunks = (tokens + missing) // CHUNK
    v_beta = mul(v, _last(beta))
    k_beta = mul(k, _last(beta))
    q, k, k_beta, v_beta = _in_chunks(q, k, k_beta, v_beta)
    decay = reshape(decay, (batch, heads, -1, CHUNK))
    upper = _upper(tape)
    cum_decay = cumsum(decay, 3)
    pairwise = sub(unsqueeze(cum_decay, 4), unsqueeze(cum_decay, 3))
    pairwise = masked_fill(pairwise, upper)
    pairwise = exp(pairwise)
    system = mul(matmul(k_beta, transpose(k, -1, -2)), pairwise)
    within = mul(matmul(q, transpose(k, -1, -2)), pairwise)
    decayed_k_beta = mul(k_beta, _last(exp(cum_decay)))
    new_values = solve_triangular(system, v_beta)
    k_decayed = solve_triangular(system, decayed_k_beta)
    state = empty(tape, (batch, heads, key_size, size), new_values.dtype, "zeros")
    out = empty(tape, new_values.shape, new_values.dtype, "zeros_like", new_values.strides)
    q = mul(q, _last(exp(cum_decay)))
    k = mul(k, _last(exp(sub(narrow(cum_decay, 3, 1), cum_decay))))
    chunk_decay = _last(_last(exp(select(cum_decay, 3))))
    layer = tape.slot
    for slot in scan_slots("chunks", chunks, layer, unrolled, APART):
        tape.enter(slot)
        v_new = sub(select(new_values, 2), matmul(select(k_decayed, 2), state))
        across = matmul(select(q, 2), state)
        out = write_part(out, add(across, matmul(select(within, 2), v_new)))
        state = add(mul(state, select(chunk_decay, 2)), matmul(transpose(select(k, 2), -1, -2), v_new))
    tape.enter(layer)
    del state
    out = reshape(out, (batch, heads, -1, size))
    out = narrow(out, 2, tokens)
    out = to_dense(transpose(out, 1, 2), dtype)
    del decay, v_beta, upper, v_new, across
    return out
