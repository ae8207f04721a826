"""CodeGen: GPT-J with queries, values and keys in one projection, and rotary positions that stay in float32.

After transformers' modeling_codegen.py (5.23).
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.gptj import GPTJ, Block, GPTJSpec, rotate_pairs
from estimator.families.heads import CausalLM, Head
from estimator.tape import dtypes
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, div_scalar, dropout, softmax, to
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, contiguous, narrow, reshape, split, transpose

PARTS = 4
"""Parts in which the projection's columns lie, each with its own queries, values and keys."""


class CodeGenSpec(GPTJSpec):
    in_sglang = "none"
    last_vllm = "none"
    can = Abilities(batches=("padding",))
    scales_activations = False

    @model_validator(mode="after")
    def _parts(self) -> Self:
        if self.num_attention_heads % PARTS:
            raise ValueError(f"num_attention_heads {self.num_attention_heads} is not a multiple of {PARTS}")
        return self


SPECS = {"codegen": CodeGenSpec}


class SelfAttention:
    def __init__(self, spec: CodeGenSpec, build: Builder):
        size = spec.hidden_size
        assert spec.rotary_dim
        self.heads, self.rotary_dim = spec.num_attention_heads, spec.rotary_dim
        self.attn_dropout = spec.attention_dropout if build.training else 0.0
        self.resid_dropout = spec.resid_pdrop if build.training else 0.0
        self.qkv_proj = build.linear("attn.qkv_proj", size, 3 * size)
        self.out_proj = build.linear("attn.out_proj", size, size)
        self.embed_positions = build.buffer("embed_positions", (spec.max_position_embeddings, spec.rotary_dim), dtypes.float32)

    def __call__(self, hidden: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        batch, tokens, size = hidden.shape
        turned, local = self.rotary_dim, size // PARTS
        qkv = self.qkv_proj(hidden)
        parts = reshape(qkv, (batch, tokens, PARTS, 3 * local))
        q, v, k = split(parts, (local, local, local), 3)
        q, k, v = self._heads(q), self._heads(k), self._heads(v)
        v = transpose(v, 1, 2)
        sincos = empty(hidden.tape, (1, tokens, turned), dtypes.float32, "index")
        sin, cos = split(sincos, (turned // 2, turned // 2), 2)
        rest = size // self.heads - turned
        k_rot, k_pass = narrow(k, 3, turned), narrow(k, 3, rest)
        q_rot, q_pass = narrow(q, 3, turned), narrow(q, 3, rest)
        k_rot = rotate_pairs(k_rot, sin, cos)
        q_rot = rotate_pairs(q_rot, sin, cos)
        k = cat((k_rot, k_pass), 3)
        q = cat((q_rot, q_pass), 3)
        k = transpose(k, 1, 2)
        q = transpose(q, 1, 2)
        out, weights = self._attend(q, k, v, mask)
        out = reshape(contiguous(transpose(out, 1, 2)), (batch, tokens, size))
        out = self.out_proj(out)
        out = dropout(out, self.resid_dropout)
        return out, weights

    def _heads(self, x: Tensor) -> Tensor:
        """[batch, tokens, parts, width] as [batch, tokens, heads, size], which copies it."""
        batch, tokens, parts, width = x.shape
        size = parts * width // self.heads
        return reshape(reshape(x, (batch, tokens, parts, width // size, size)), (batch, tokens, self.heads, size))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        wide_q, wide_k = to(q, dtypes.float32), to(k, dtypes.float32)
        weights = matmul(wide_q, transpose(wide_k, 2, 3))
        weights = add(weights, mask)
        weights = div_scalar(weights)
        weights = softmax(weights)
        weights = to(weights, v.dtype)
        weights = dropout(weights, self.attn_dropout)
        return matmul(weights, v), weights


class CodeGenBlock(Block):
    attention = SelfAttention


class CodeGen(GPTJ):
    """The body of the model."""

    block = CodeGenBlock


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: CausalLM(CodeGen(spec, build), spec, build, bias=True)}
