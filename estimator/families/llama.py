"""Decoders of the Llama kind: Llama, Mistral, Qwen2, Qwen3.

They differ in where linear layers have biases, whether queries and keys are normalised, and in the sliding window.
After transformers' modeling_llama.py, modeling_mistral.py, modeling_qwen2.py and modeling_qwen3.py (5.23).
"""

from __future__ import annotations

from estimator import dtypes
from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.modules import ACTIVATIONS, rotary_table, rotate
from estimator.specs.spec import ModelSpec
from estimator.tape.pointwise import add, add_scalar, mul
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape, transpose


class SelfAttention:
    def __init__(self, spec: ModelSpec, build: Builder, attention: str):
        size = spec.head_dim
        queries, keys = spec.num_attention_heads * size, spec.num_key_value_heads * size
        self.head_dim = size
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, queries, spec.attention_bias)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, keys, spec.attention_bias)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, keys, spec.attention_bias)
        self.o_proj = build.linear("self_attn.o_proj", queries, spec.hidden_size, spec.attention_output_bias)
        self.q_norm = build.rms_norm("self_attn.q_norm", size) if spec.qk_norm else None
        self.k_norm = build.rms_norm("self_attn.k_norm", size) if spec.qk_norm else None
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = reshape(self.q_proj(hidden), heads)
        q = transpose(q if self.q_norm is None else self.q_norm(q), 1, 2)
        k = reshape(self.k_proj(hidden), heads)
        k = transpose(k if self.k_norm is None else self.k_norm(k), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        q, k = rotate(q, k, cos, sin)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        return self.o_proj(reshape(out, (batch, tokens, -1))), weights


class MLP:
    def __init__(self, spec: ModelSpec, build: Builder):
        self.gate_proj = build.linear("mlp.gate_proj", spec.hidden_size, spec.intermediate_size, spec.mlp_bias)
        self.up_proj = build.linear("mlp.up_proj", spec.hidden_size, spec.intermediate_size, spec.mlp_bias)
        self.down_proj = build.linear("mlp.down_proj", spec.intermediate_size, spec.hidden_size, spec.mlp_bias)
        self.act_fn = ACTIVATIONS[spec.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(mul(self.act_fn(self.gate_proj(x)), self.up_proj(x)))


class DecoderLayer:
    def __init__(self, spec: ModelSpec, build: Builder, attention: str):
        self.self_attn = SelfAttention(spec, build, attention)
        self.mlp = MLP(spec, build)
        self.input_layernorm = build.rms_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.rms_norm("post_attention_layernorm", spec.hidden_size)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, cos, sin, mask)
        out = add(residual, out)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        return add(residual, out)


class Llama:
    """The whole model; `forward` gives the last hidden states, `lm_head` makes logits of them."""

    def __init__(self, spec: ModelSpec, build: Builder, attention: str):
        self.spec = spec
        self.attention = attention
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        self.layers = build.layers(spec.num_hidden_layers, lambda: DecoderLayer(spec, build, attention))
        self.norm = build.rms_norm("norm", spec.hidden_size)
        frequencies = (spec.head_dim // 2,)
        self.buffers = [build.buffer(name, frequencies, dtypes.float32) for name in ("inv_freq", "original_inv_freq")]
        self.lm_head = build.head(spec.hidden_size, spec.vocab_size, spec.tie_word_embeddings)

    def forward(self, ids: Tensor) -> Tensor:
        tape, spec = ids.tape, self.spec
        batch, tokens = ids.shape
        embeds = self.embed_tokens(ids)
        positions = add_scalar(empty(tape, (1, tokens), dtypes.int64, "arange"))
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, spec.sliding_window)
        hidden = embeds
        cos, sin = rotary_table(tape, tokens, spec.head_dim, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, mask, positions)
        return self.norm(hidden)
