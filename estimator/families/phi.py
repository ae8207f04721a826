"""Phi-1, Phi-1.5 and Phi-2: biases everywhere, attention and feed-forward side by side, rotary embeddings on a part of each head.

After transformers' modeling_phi.py (5.23).
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.heads import CausalLM, decoder_heads
from estimator.families.modules import ACTIVATIONS, rotary_table, rotate, token_positions
from estimator.families.rotary import PartialRotarySpec, frequencies
from estimator.specs.spec import Activation, Probability
from estimator.tape.pointwise import add, dropout
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, narrow, reshape, transpose


class PhiSpec(PartialRotarySpec):
    cached = True

    hidden_act: Activation = "gelu_new"
    partial_rotary_factor: float = 0.5
    qk_layernorm: bool = False
    resid_pdrop: Probability = 0.0
    embd_pdrop: Probability = 0.0

    @model_validator(mode="after")
    def _normalised(self) -> Self:
        if self.qk_layernorm and self.head_dim * self.num_attention_heads != self.hidden_size:
            raise ValueError("qk_layernorm needs a head_dim of hidden_size / num_attention_heads")
        return self


SPECS = {"phi": PhiSpec}


class PhiAttention:
    def __init__(self, spec: PhiSpec, build: Builder):
        size = spec.head_dim
        queries, keys = spec.num_attention_heads * size, spec.num_key_value_heads * size
        self.head_dim, self.rotary = size, spec.rotary_size
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, queries, True)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, keys, True)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, keys, True)
        self.dense = build.linear("self_attn.dense", queries, spec.hidden_size, True)
        self.q_layernorm = build.layer_norm("self_attn.q_layernorm", size) if spec.qk_layernorm else None
        self.k_layernorm = build.layer_norm("self_attn.k_layernorm", size) if spec.qk_layernorm else None
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = transpose(reshape(self.q_proj(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_proj(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        if self.q_layernorm is not None and self.k_layernorm is not None:
            q = self.q_layernorm(q)
            k = self.k_layernorm(k)
        rest = self.head_dim - self.rotary
        q_rot, q_pass = narrow(q, -1, self.rotary), narrow(q, -1, rest)  # both are held to the end
        k_rot, k_pass = narrow(k, -1, self.rotary), narrow(k, -1, rest)
        q_rot, k_rot = rotate(q_rot, k_rot, cos, sin)
        q = cat((q_rot, q_pass), -1)
        k = cat((k_rot, k_pass), -1)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, (batch, tokens, -1))
        out = self.dense(out)
        return out, weights


class PhiMLP:
    def __init__(self, spec: PhiSpec, build: Builder):
        self.act = ACTIVATIONS[spec.hidden_act]
        self.fc1 = build.linear("mlp.fc1", spec.hidden_size, spec.intermediate_size, True)
        self.fc2 = build.linear("mlp.fc2", spec.intermediate_size, spec.hidden_size, True)

    def __call__(self, x: Tensor) -> Tensor:
        out = self.fc1(x)
        out = self.act(out)
        return self.fc2(out)


class PhiDecoderLayer:
    def __init__(self, spec: PhiSpec, build: Builder):
        self.self_attn = PhiAttention(spec, build)
        self.mlp = PhiMLP(spec, build)
        self.input_layernorm = build.layer_norm("input_layernorm", spec.hidden_size)
        self.dropout = spec.resid_pdrop if build.training else 0.0

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        normed = self.input_layernorm(hidden)
        attended, _ = self.self_attn(normed, cos, sin, mask)
        attended = dropout(attended, self.dropout)
        fed = dropout(self.mlp(normed), self.dropout)
        return add(add(attended, fed), residual)


class PhiModel:
    """The body of the model."""

    def __init__(self, spec: PhiSpec, build: Builder):
        self.spec = spec
        self.attention = build.attention
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: PhiDecoderLayer(spec, build))
        self.buffers = frequencies(build, spec.rotary_size)
        self.dropout = spec.embd_pdrop if build.training else 0.0
        self.final_layernorm = build.layer_norm("final_layernorm", spec.hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        tape, spec = ids.tape, self.spec
        batch, tokens = ids.shape
        embeds = self.embed_tokens(ids)
        positions = token_positions(tape, tokens)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, spec.window)
        embeds = dropout(embeds, self.dropout)
        hidden = embeds
        cos, sin = rotary_table(tape, tokens, spec.rotary_size, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, mask, positions)
        return self.final_layernorm(hidden)


class PhiForCausalLM(CausalLM):
    def __init__(self, spec: PhiSpec, build: Builder):
        super().__init__(PhiModel(spec, build), spec, build, bias=True)


HEADS = decoder_heads(PhiModel) | {"causal-lm": PhiForCausalLM}
