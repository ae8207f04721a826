"""GPT-J: attention of its own in float32, rotary positions on neighbouring pairs, attention and feed-forward side by side.

After transformers' modeling_gptj.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from pydantic import model_validator

from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.heads import CausalLM, Head, decoder_heads
from estimator.families.spec import Activation, Depth, FullHeadsSpec, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, add_scalar, div_scalar, dropout, mul, neg, softmax, to
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, contiguous, every_second, narrow, reshape, split, stack_last, transpose


class GPTJSpec(FullHeadsSpec):
    scales_activations = True
    module_dropouts = ("attention_dropout",)
    attentions = ("eager",)
    learned_positions = True

    hidden_size: Size = called("n_embd")
    num_hidden_layers: Depth = called("n_layer")
    num_attention_heads: Size = called("n_head")
    intermediate_size: Size = called("n_inner")
    max_position_embeddings: Size = called("n_positions", 2048)
    hidden_act: Activation = called("activation_function", "gelu_new")
    rotary_dim: Size | None = 64
    attention_dropout: Probability = called("attn_pdrop", 0.0)
    resid_pdrop: Probability = 0.0
    embd_pdrop: Probability = 0.0

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.rotary_dim is None or self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise ValueError(f"rotary_dim {self.rotary_dim} should be even, and no more than head_dim {self.head_dim}")
        return self


SPECS = {"gptj": GPTJSpec}

Attend = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Hidden states, mask and positions in, what they attend to and the weights out."""


class SelfAttention:
    def __init__(self, spec: GPTJSpec, build: Builder):
        size = spec.hidden_size
        assert spec.rotary_dim
        self.heads, self.rotary_dim = spec.num_attention_heads, spec.rotary_dim
        self.attn_dropout = spec.attention_dropout if build.training else 0.0
        self.resid_dropout = spec.resid_pdrop if build.training else 0.0
        self.k_proj = build.linear("attn.k_proj", size, size)
        self.v_proj = build.linear("attn.v_proj", size, size)
        self.q_proj = build.linear("attn.q_proj", size, size)
        self.out_proj = build.linear("attn.out_proj", size, size)
        self.embed_positions = build.buffer("embed_positions", (spec.max_position_embeddings, spec.rotary_dim), dtypes.float32)

    def __call__(self, hidden: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        tape = hidden.tape
        batch, tokens, size = hidden.shape
        heads, turned = (batch, tokens, self.heads, size // self.heads), self.rotary_dim
        q, k, v = self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden)
        q, k = reshape(q, heads), reshape(k, heads)
        v = transpose(reshape(v, heads), 1, 2)
        table = empty(tape, (1, *self.embed_positions.shape), dtypes.float32, "repeat")
        places = empty(tape, (1, tokens, turned), dtypes.int64, "repeat")
        sincos = to(empty(tape, places.shape, dtypes.float32, "gather"), k.dtype)
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
        del table, places
        return out, weights

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        wide_q, wide_k = to(q, dtypes.float32), to(k, dtypes.float32)
        weights = matmul(wide_q, transpose(wide_k, 2, 3))
        weights = div_scalar(weights)
        weights = add(weights, mask)
        weights = softmax(weights)
        weights = to(weights, v.dtype)
        weights = dropout(weights, self.attn_dropout)
        return matmul(weights, v), weights


def rotate_pairs(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Turn neighbouring pairs; each number of the table is repeated for both of a pair."""
    _, tokens, half = sin.shape
    s = empty(sin.tape, (1, tokens, 1, 2 * half), sin.dtype, "repeat_interleave")
    c = empty(cos.tape, s.shape, cos.dtype, "repeat_interleave")
    return add(mul(x, c), mul(_rotate_every_two(x), s))


def _rotate_every_two(x: Tensor) -> Tensor:
    first, second = every_second(x), every_second(x)
    turned = stack_last((neg(second), first))
    return reshape(turned, x.shape)


class Block:
    attention: Callable[[Any, Builder], Attend] = SelfAttention

    def __init__(self, spec: GPTJSpec, build: Builder):
        self.ln_1 = build.layer_norm("ln_1", spec.hidden_size)
        self.attn = type(self).attention(spec, build)
        self.mlp = TwoLayerMLP(spec, build, ("fc_in", "fc_out"), bias=True, drops=spec.resid_pdrop)

    def __call__(self, hidden: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.ln_1(hidden)
        attended, weights = self.attn(normed, mask, positions)
        fed = self.mlp(normed)
        return add(add(attended, fed), hidden), weights


class GPTJ:
    """The body of the model."""

    block = Block

    def __init__(self, spec: GPTJSpec, build: Builder):
        self.wte = build.embedding("wte", spec.vocab_size, spec.hidden_size)
        self.dropout = spec.embd_pdrop if build.training else 0.0
        self.h = build.layers(spec.num_hidden_layers, lambda _: self.block(spec, build), holding=True)
        self.ln_f = build.layer_norm("ln_f", spec.hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        tape = ids.tape
        batch, tokens = ids.shape
        embeds = self.wte(ids)
        positions = add_scalar(empty(tape, (1, tokens), dtypes.int64, "arange"))
        mask = causal_mask(tape, batch, tokens, embeds.dtype, "eager", None)
        hidden = dropout(embeds, self.dropout)
        for block in self.h:
            outputs = block(hidden, mask, positions)  # the attention weights live until the next block is done
            hidden = outputs[0]
        return self.ln_f(hidden)


class GPTJForCausalLM(CausalLM):
    """Its output layer has a bias."""

    def __init__(self, spec: GPTJSpec, build: Builder):
        super().__init__(GPTJ(spec, build), spec, build, bias=True)


HEADS: dict[str, Head] = {**decoder_heads(GPTJ), "causal-lm": GPTJForCausalLM}
