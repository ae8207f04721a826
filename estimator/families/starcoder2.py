"""StarCoder2: layer norms, biases, grouped key heads, a sliding window.

After transformers' modeling_starcoder2.py (5.23).
"""

from __future__ import annotations

from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.heads import decoder_heads
from estimator.families.modules import ACTIVATIONS, rotary_table, rotate, token_positions
from estimator.families.rotary import RotarySpec, frequencies
from estimator.specs.spec import Activation, Probability, Size
from estimator.tape.pointwise import add, dropout
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, transpose


class Starcoder2Spec(RotarySpec):
    cached = True
    max_position_embeddings: Size | None = 4096
    hidden_act: Activation = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    use_bias: bool = True
    sliding_window: Size | None = None
    residual_dropout: Probability = 0.0
    embedding_dropout: Probability = 0.0

    @property
    def window(self) -> int | None:
        return self.sliding_window


SPECS = {"starcoder2": Starcoder2Spec}


class Starcoder2MLP:
    def __init__(self, spec: Starcoder2Spec, build: Builder):
        self.c_fc = build.linear("mlp.c_fc", spec.hidden_size, spec.intermediate_size, spec.use_bias)
        self.c_proj = build.linear("mlp.c_proj", spec.intermediate_size, spec.hidden_size, spec.use_bias)
        self.act = ACTIVATIONS[spec.hidden_act]
        self.dropout = spec.residual_dropout if build.training else 0.0

    def __call__(self, x: Tensor) -> Tensor:
        out = self.c_fc(x)
        out = self.act(out)
        out = self.c_proj(out)
        return dropout(out, self.dropout)


class Starcoder2Attention:
    def __init__(self, spec: Starcoder2Spec, build: Builder):
        size, bias = spec.head_dim, spec.use_bias
        queries, keys = spec.num_attention_heads * size, spec.num_key_value_heads * size
        self.head_dim = size
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, queries, bias)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, keys, bias)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, keys, bias)
        self.o_proj = build.linear("self_attn.o_proj", queries, spec.hidden_size, bias)
        self.dropout = spec.residual_dropout if build.training else 0.0
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = transpose(reshape(self.q_proj(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_proj(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        q, k = rotate(q, k, cos, sin)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, (batch, tokens, -1))
        out = self.o_proj(out)
        out = dropout(out, self.dropout)
        return out, weights


class Starcoder2DecoderLayer:
    def __init__(self, spec: Starcoder2Spec, build: Builder):
        self.self_attn = Starcoder2Attention(spec, build)
        self.mlp = Starcoder2MLP(spec, build)
        self.input_layernorm = build.layer_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.layer_norm("post_attention_layernorm", spec.hidden_size)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, cos, sin, mask)
        out = add(residual, out)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        return add(residual, out)


class Starcoder2Model:
    """The body of the model."""

    def __init__(self, spec: Starcoder2Spec, build: Builder):
        self.spec = spec
        self.attention = build.attention
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Starcoder2DecoderLayer(spec, build))
        self.norm = build.layer_norm("norm", spec.hidden_size)
        self.buffers = frequencies(build, spec.head_dim)
        self.dropout = spec.embedding_dropout if build.training else 0.0

    def forward(self, ids: Tensor) -> Tensor:
        tape, spec = ids.tape, self.spec
        batch, tokens = ids.shape
        embeds = self.embed_tokens(ids)
        positions = token_positions(tape, tokens)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, spec.window)
        hidden = embeds
        hidden = dropout(hidden, self.dropout)
        cos, sin = rotary_table(tape, tokens, spec.head_dim, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, mask, positions)
        return self.norm(hidden)


HEADS = decoder_heads(Starcoder2Model)
