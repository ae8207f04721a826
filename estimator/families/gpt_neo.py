"""GPT-Neo: attention of its own in float32, by turns over all tokens and over a window, and learned positions.

After transformers' modeling_gpt_neo.py (5.23).
"""

from __future__ import annotations

from typing import Any

from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.heads import decoder_heads
from estimator.families.spec import Activation, Depth, FullHeadsSpec, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, add_scalar, dropout, softmax, to, where
from estimator.tape.tensor import Tensor, alias, empty
from estimator.tape.views import contiguous, reshape, transpose


class GPTNeoSpec(FullHeadsSpec):
    """Layers of both kinds hold the same: each has a mask of its own, a window or not."""

    in_sglang = "none"

    last_vllm = "none"
    module_dropouts = ("attention_dropout",)
    attentions = ("eager",)
    learned_positions = True

    num_hidden_layers: Depth = called("num_layers")
    num_attention_heads: Size = called("num_heads")
    max_position_embeddings: Size = 2048
    hidden_act: Activation = called("activation_function", "gelu_new")
    tie_word_embeddings: bool = True
    resid_dropout: Probability = 0.0
    embed_dropout: Probability = 0.0

    def config(self) -> dict[str, Any]:
        """With the kinds of attention, one per layer."""
        return super().config() | {"attention_types": [[["global"], self.num_hidden_layers]]}


SPECS = {"gpt_neo": GPTNeoSpec}


class SelfAttention:
    def __init__(self, spec: GPTNeoSpec, build: Builder):
        size, positions = spec.hidden_size, spec.max_position_embeddings
        self.heads = spec.num_attention_heads
        self.attn_dropout = spec.attention_dropout if build.training else 0.0
        self.resid_dropout = spec.resid_dropout if build.training else 0.0
        self.bias = build.buffer("bias", (1, 1, positions, positions), dtypes.bool_)
        self.k_proj = build.linear("attn.attention.k_proj", size, size)
        self.v_proj = build.linear("attn.attention.v_proj", size, size)
        self.q_proj = build.linear("attn.attention.q_proj", size, size)
        self.out_proj = build.linear("attn.attention.out_proj", size, size, bias=True)

    def __call__(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        batch, tokens, size = hidden.shape
        heads = (batch, tokens, self.heads, size // self.heads)
        q, k, v = self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden)
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        out, weights = self._attend(q, k, v, mask)
        out = reshape(contiguous(transpose(out, 1, 2)), (batch, tokens, size))
        out = self.out_proj(out)
        out = dropout(out, self.resid_dropout)
        return out, weights

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        wide_q, wide_k = to(q, dtypes.float32), to(k, dtypes.float32)
        weights = matmul(wide_q, transpose(wide_k, 2, 3))
        seen = alias(self.bias, (1, 1, *weights.shape[2:]))
        lowest = empty(q.tape, (), weights.dtype, "full")
        weights = where(seen, weights)
        weights = add(weights, mask)
        weights = softmax(weights)
        weights = to(weights, v.dtype)
        weights = dropout(weights, self.attn_dropout)
        out = matmul(weights, v)
        del lowest
        return out, weights


class Block:
    def __init__(self, spec: GPTNeoSpec, build: Builder):
        self.ln_1 = build.layer_norm("ln_1", spec.hidden_size)
        self.attn = SelfAttention(spec, build)
        self.ln_2 = build.layer_norm("ln_2", spec.hidden_size)
        self.mlp = TwoLayerMLP(spec, build, ("c_fc", "c_proj"), bias=True, drops=spec.resid_dropout)

    def __call__(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        residual = hidden
        out = self.ln_1(hidden)
        attended, weights = self.attn(out, mask)
        out = add(attended, residual)
        residual = out
        out = self.ln_2(out)
        fed = self.mlp(out)
        out = add(residual, fed)
        return out, weights


class GPTNeo:
    """The body of the model."""

    def __init__(self, spec: GPTNeoSpec, build: Builder):
        self.wte = build.embedding("wte", spec.vocab_size, spec.hidden_size)
        self.wpe = build.embedding("wpe", spec.max_position_embeddings, spec.hidden_size)
        self.dropout = spec.embed_dropout if build.training else 0.0
        self.h = build.layers(spec.num_hidden_layers, lambda _: Block(spec, build), holding=True)
        self.ln_f = build.layer_norm("ln_f", spec.hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        tape = ids.tape
        batch, tokens = ids.shape
        embeds = self.wte(ids)
        positions = add_scalar(empty(tape, (1, tokens), dtypes.int64, "arange"))
        mask = causal_mask(tape, batch, tokens, embeds.dtype, "eager", None)
        places = self.wpe(positions)
        hidden = add(embeds, places)
        hidden = dropout(hidden, self.dropout)
        for block in self.h:
            outputs = block(hidden, mask)  # the attention weights live until the next block is done
            hidden = outputs[0]
        return self.ln_f(hidden)


HEADS = decoder_heads(GPTNeo)
