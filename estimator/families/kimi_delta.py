"""Kimi Delta Attention (KDA): a gated delta net with a forget gate for each channel of a key, scanned in chunks of tokens.

After transformers' modeling_kimi_linear.py (5.23), `chunk_kimi_delta_attention` and `l2norm`, without the packages
flash-linear-attention and causal-conv1d: the path in plain torch, which holds the decay of every pair of a chunk's tokens and
every channel. The chunks between the first and the last all do the same, and share a slot.
"""

from __future__ import annotations

from typing import Any

from estimator.families.build import Builder
from estimator.families.delta_rule import APART, CHUNK, IN_TORCH
from estimator.families.mamba import scan_slots
from estimator.families.mamba2 import causal_conv1d
from estimator.families.modules import ACTIVATIONS, Module
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import (
    add,
    add_scalar,
    div,
    exp,
    log,
    mean_last,
    mul,
    mul_scalar,
    neg,
    pow_scalar,
    rsqrt,
    sigmoid,
    sqrt,
    sub,
    to,
    where_either,
)
from estimator.tape.reduction import cumsum, sum_dim
from estimator.tape.selection import masked_fill
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import cat, clone, contiguous, narrow, pad, reshape, select, split, transpose, unsqueeze, write_part


class ForgetGate:
    """The decay of each channel of each token: -e^A softplus(f + bias), [batch, tokens, heads, size], in float32."""

    def __init__(self, spec: Any, build: Builder):
        self.size = spec.linear_head_dim
        channels = spec.linear_num_heads * self.size
        self.dt_bias = build.parameter("self_attn.forget_gate.dt_bias", (channels,))
        self.a_log = build.parameter("self_attn.forget_gate.A_log", (1, 1, spec.linear_num_heads, 1))
        self.f_a_proj = build.linear("self_attn.forget_gate.f_a_proj", spec.hidden_size, self.size)
        self.f_b_proj = build.linear("self_attn.forget_gate.f_b_proj", self.size, channels)

    def __call__(self, hidden: Tensor) -> Tensor:
        batch, tokens, _ = hidden.shape
        forget = self.f_b_proj(self.f_a_proj(hidden))
        bias = reshape(to(self.dt_bias, dtypes.float32), (1, 1, -1))
        g = reshape(add(to(forget, dtypes.float32), bias), (batch, tokens, -1, self.size))
        a_log = to(self.a_log, dtypes.float32)
        rate = exp(a_log)
        softplus = where_either(unary("gt", g, dtypes.bool_), g, log(add_scalar(exp(g))))
        out = mul(neg(rate), softplus)
        del forget
        return out


class SigmoidRMSNorm:
    """Normalisation in float32, and then a sigmoid of a gate (`KimiLinearRMSNormGated`)."""

    def __init__(self, weight: Tensor):
        self.weight = weight

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        out = to(x, dtypes.float32)
        variance = mean_last(pow_scalar(out))
        out = mul(out, rsqrt(add_scalar(variance)))
        out = mul(to(self.weight, dtypes.float32), out)
        out = mul(out, sigmoid(to(gate, dtypes.float32)))
        result = to(out, x.dtype)
        del variance
        return result


class KimiDeltaAttention:
    """A layer's mixer: queries, keys and values pass one short convolution together. `dtype`: of the convolution's weight, where
    it has one of its own."""

    def __init__(self, spec: Any, build: Builder, dtype: DType | None = None):
        hidden, self.size, self.unrolled = spec.hidden_size, spec.linear_head_dim, build.unrolled
        self.channels = spec.linear_num_heads * self.size
        self.activation = ACTIVATIONS[spec.hidden_act]
        self.q_proj = build.linear("self_attn.q_proj", hidden, self.channels)
        self.k_proj = build.linear("self_attn.k_proj", hidden, self.channels)
        self.v_proj = build.linear("self_attn.v_proj", hidden, self.channels)
        weight = (3 * self.channels, 1, spec.linear_conv_kernel_dim)
        self.conv_weight = build.parameter("self_attn.conv1d.weight", weight, dtype=dtype)
        self.make_gates(spec, build)

    def make_gates(self, spec: Any, build: Builder) -> None:
        """Its gates, its norm and its output layer, in the order in which the real module makes them."""
        self.forget_gate: Module = ForgetGate(spec, build)
        self.b_proj = build.linear("self_attn.b_proj", spec.hidden_size, spec.linear_num_heads)
        self.g_a_proj = build.linear("self_attn.g_a_proj", spec.hidden_size, self.size)
        self.g_b_proj = build.linear("self_attn.g_b_proj", self.size, self.channels)
        self.o_norm = SigmoidRMSNorm(build.parameter("self_attn.o_norm.weight", (self.size,)))
        self.o_proj = build.linear("self_attn.o_proj", self.channels, spec.hidden_size)

    def output_gate(self, hidden: Tensor) -> Tensor:
        """What the norm's gate is made of."""
        return self.g_b_proj(self.g_a_proj(hidden))

    def __call__(self, hidden: Tensor) -> Tensor:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.size)
        mixed = transpose(cat((self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden)), -1), 1, 2)
        kernel = self.conv_weight.shape[-1]
        mixed = causal_conv1d(mixed, reshape(self.conv_weight, (-1, kernel)), None, self.activation)
        mixed = narrow(mixed, 2, tokens)
        q, k, v = split(transpose(mixed, 1, 2), (self.channels,) * 3, 2)
        q = reshape(q, heads)
        k = reshape(k, heads)
        v = reshape(v, heads)
        g = self.forget_gate(hidden)
        beta = sigmoid(self.b_proj(hidden))
        out = chunk_kimi_delta_attention(q, k, v, g, beta, self.unrolled)
        gate = reshape(self.output_gate(hidden), heads)
        result = reshape(self.o_norm(out, gate), (batch, tokens, -1))
        result = self.o_proj(result)
        del mixed, q, k, v, g, beta, out, gate
        return result


def chunk_kimi_delta_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, unrolled: bool) -> Tensor:
    """What each token reads of the state, as `q`. All [batch, tokens, heads, size], but `beta`, which has no size. Every local
    variable lives to the end."""
    dtype, tape = q.dtype, q.tape
    tape.remarks[IN_TORCH] = None
    q, k, v, beta, g = [to(contiguous(transpose(t, 1, 2)), dtypes.float32) for t in (q, k, v, beta, g)]
    q = _normalized(q)
    k = _normalized(k)
    batch, heads, tokens, size = k.shape
    missing = -tokens % CHUNK
    q = mul_scalar(pad(q, 2, 0, missing))
    k = pad(k, 2, 0, missing)
    v = pad(v, 2, 0, missing)
    g = pad(g, 2, 0, missing)
    beta = pad(beta, 2, 0, missing)
    v_beta = mul(v, unsqueeze(beta, 3))
    k_beta = mul(k, unsqueeze(beta, 3))
    q, k, v, g, k_beta, v_beta = [reshape(t, (batch, heads, -1, CHUNK, size)) for t in (q, k, v, g, k_beta, v_beta)]
    g = cumsum(g, 3)
    mask, strict = _upper(tape), _upper(tape)
    decay = exp(masked_fill(sub(unsqueeze(g, 4), unsqueeze(g, 3)), unsqueeze(strict, 2)))
    within = neg(masked_fill(sum_dim(mul(mul(unsqueeze(k_beta, 4), unsqueeze(k, 3)), decay), -1), mask))
    for i in range(1, CHUNK):
        row = clone(narrow(select(within, 3), 3, i))
        before = clone(narrow(narrow(within, 3, i), 4, i))
        within = write_part(within, add(row, sum_dim(mul(unsqueeze(row, 4), before), -2)))
    within = add(within, empty(tape, (CHUNK, CHUNK), within.dtype, "eye"))
    v = matmul(within, v_beta)
    k_decayed = matmul(within, mul(k_beta, exp(g)))
    state = empty(tape, (batch, heads, size, size), v.dtype, "zeros")
    out = empty(tape, v.shape, v.dtype, "zeros_like", v.strides)
    mask = _upper(tape)
    layer = tape.slot
    for slot in scan_slots("chunks", (tokens + missing) // CHUNK, layer, unrolled, APART):
        tape.enter(slot)
        q_i = select(q, 2)
        k_i = select(k, 2)
        v_i = select(v, 2)
        g_i = select(g, 2)
        across = matmul(mul(q_i, exp(g_i)), state)
        inside = masked_fill(sum_dim(mul(mul(unsqueeze(q_i, 3), unsqueeze(k_i, 2)), select(decay, 2)), -1), mask)
        v_prime = matmul(select(k_decayed, 2), state)
        v_new = sub(v_i, v_prime)
        out = write_part(out, add(across, matmul(inside, v_new)))
        kept = mul(state, unsqueeze(exp(select(g_i, 2)), 3))
        state = add(kept, matmul(transpose(mul(k_i, exp(sub(narrow(g_i, 2, 1), g_i))), -1, -2), v_new))
        del kept
    tape.enter(layer)
    del state
    out = reshape(out, (batch, heads, -1, size))
    out = narrow(out, 2, tokens)
    out = to(contiguous(transpose(out, 1, 2)), dtype)
    del beta, row, before, across, inside, v_prime
    return out


def _normalized(x: Tensor) -> Tensor:
    """`l2norm`: each vector of the last dimension by its length."""
    length = sqrt(add_scalar(sum_dim(mul(x, x), -1, keepdim=True)))
    return div(x, length)


def _upper(tape: Tape) -> Tensor:
    ones = empty(tape, (CHUNK, CHUNK), dtypes.bool_, "ones")
    upper = empty(tape, (CHUNK, CHUNK), dtypes.bool_, "triu")
    del ones
    return upper
