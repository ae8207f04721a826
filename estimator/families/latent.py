"""DeepSeek's multi-head latent attention (MLA): queries, keys and values through low-rank products.

After transformers' modeling_deepseek_v2.py and modeling_deepseek_v3.py (5.23). Of the queries and keys one part of each head is
rotated, and all heads share the keys' rotated part; values have a head size of their own.
"""

from __future__ import annotations

from typing import Any

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.modules import rotate
from estimator.tape import dtypes
from estimator.tape.complex import as_complex, as_real, multiply_by
from estimator.tape.pointwise import add, mul, sub, to
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, every_second, expand, narrow, reshape, split, transpose, unsqueeze, write_part

Rotary = tuple[Tensor, ...]
"""Cosines and sines, or complex numbers: V2's."""


class LatentAttention:
    """Attention with keys and values that are expanded from a latent of `kv_lora_rank` per token. `name`: of it in a layer."""

    def __init__(self, spec: Any, build: Builder, name: str = "self_attn"):
        self.spec = spec
        hidden, heads, rank = spec.hidden_size, spec.num_attention_heads, spec.q_lora_rank
        if rank is None:
            self.q_proj = build.linear(f"{name}.q_proj", hidden, heads * spec.qk_head_dim)
        else:
            self.q_a_proj = build.linear(f"{name}.q_a_proj", hidden, rank, spec.attention_bias)
            self.q_a_layernorm = build.rms_norm(f"{name}.q_a_layernorm", rank)
            self.q_b_proj = build.linear(f"{name}.q_b_proj", rank, heads * spec.qk_head_dim)
        latent = spec.kv_lora_rank
        self.kv_a_proj = build.linear(f"{name}.kv_a_proj_with_mqa", hidden, latent + spec.head_dim, spec.attention_bias)
        self.kv_a_layernorm = build.rms_norm(f"{name}.kv_a_layernorm", latent)
        self.kv_b_proj = build.linear(f"{name}.kv_b_proj", latent, heads * (spec.qk_nope_head_dim + spec.v_head_dim))
        self.o_proj = build.linear(f"{name}.o_proj", heads * spec.v_head_dim, hidden, spec.attention_bias)
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, *shared: Any) -> tuple[Tensor, Tensor | None]:
        rotary, mask = shared[:-1], shared[-1]
        spec, (batch, tokens, _) = self.spec, hidden.shape
        q = self.q_proj(hidden) if spec.q_lora_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden)))
        q = transpose(reshape(q, (batch, tokens, -1, spec.qk_head_dim)), 1, 2)
        q_pass, q_rot = split(q, (spec.qk_nope_head_dim, spec.head_dim), 3)
        compressed = self.kv_a_proj(hidden)
        latent, k_rot = split(compressed, (spec.kv_lora_rank, spec.head_dim), 2)
        latent = self.kv_a_layernorm(latent)
        latent = reshape(latent, (batch, 1, tokens, spec.kv_lora_rank))
        k_rot = reshape(k_rot, (batch, 1, tokens, spec.head_dim))
        q_rot, k_rot = self.rotate(q_rot, k_rot, rotary)
        queries = cat((q_pass, q_rot), 3)
        queries = self.scaled(queries, rotary)
        keys, values = self.expand(latent, k_rot)
        out, weights = self.attend(queries, keys, values, mask)
        return self.o_proj(reshape(out, (batch, tokens, -1))), weights

    def scaled(self, queries: Tensor, rotary: Rotary) -> Tensor:
        """Queries as they are attended with: here as they are."""
        return queries

    def expand(self, latent: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of every head."""
        spec, (batch, _, tokens, _) = self.spec, latent.shape
        heads, nope, value = spec.num_attention_heads, spec.qk_nope_head_dim, spec.v_head_dim
        expanded = transpose(reshape(self.kv_b_proj(latent), (batch, tokens, heads, nope + value)), 1, 2)
        k_nope, values = split(expanded, (nope, value), 3)
        k_rot = expand(k_rot, (batch, heads, tokens, spec.head_dim))
        keys = empty(latent.tape, (batch, heads, tokens, spec.qk_head_dim), expanded.dtype, "new_empty")
        keys = write_part(keys, k_nope)
        return write_part(keys, k_rot), values

    def rotate(self, q: Tensor, k: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """V3's: neighbours are pairs, unless the config says that halves are."""
        cos, sin = rotary
        if not self.spec.rope_interleave:
            return rotate(q, k, cos, sin)
        return rotate_neighbours(q, k, cos, sin)


def rotate_neighbours(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, heads: int = 1) -> tuple[Tensor, Tensor]:
    """The rotary embedding of neighbouring elements, which come out as halves. `heads`: which dimension they are."""
    c, s = (unsqueeze(narrow(t, 2, t.shape[2] // 2), heads) for t in (cos, sin))
    q1, q2, k1, k2 = every_second(q), every_second(q), every_second(k), every_second(k)
    rotated_q = cat((sub(mul(q1, c), mul(q2, s)), add(mul(q2, c), mul(q1, s))), 3)
    rotated_k = cat((sub(mul(k1, c), mul(k2, s)), add(mul(k2, c), mul(k1, s))), 3)
    return rotated_q, rotated_k


class ComplexLatentAttention(LatentAttention):
    """V2's, where pairs are complex numbers."""

    def rotate(self, q: Tensor, k: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        (turns,) = rotary
        complex_q = as_complex(to(q, dtypes.float32))
        complex_k = as_complex(to(k, dtypes.float32))
        turns = unsqueeze(turns, 1)
        rotated_q = to(as_real(multiply_by(complex_q, turns)), q.dtype)
        rotated_k = to(as_real(multiply_by(complex_k, turns)), k.dtype)
        return rotated_q, rotated_k
