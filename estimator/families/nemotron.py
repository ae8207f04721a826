"""Nemotron and Minitron: layer norms whose weights count from one, squared ReLU, rotary embeddings on a part of each head.

After transformers' modeling_nemotron.py (5.23).
"""

from __future__ import annotations

from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.heads import decoder_heads
from estimator.families.modules import ACTIVATIONS, rotary_table, rotate, token_positions
from estimator.families.rotary import PartialRotarySpec, frequencies
from estimator.specs.spec import Activation, Size
from estimator.tape.autocast import paused
from estimator.tape.normalization import layer_norm
from estimator.tape.pointwise import add, add_scalar, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, narrow, reshape, transpose


class NemotronSpec(PartialRotarySpec):
    cached = tensor_parallel = True

    max_position_embeddings: Size | None = 4096
    hidden_act: Activation = "relu2"
    partial_rotary_factor: float = 0.5
    attention_bias: bool = False
    mlp_bias: bool = False


SPECS = {"nemotron": NemotronSpec}


class LayerNorm1P:
    """A layer norm of weights that count from one. It runs in autocast's type, where that is on."""

    def __init__(self, name: str, size: int, build: Builder):
        self.weight = build.parameter(name + ".weight", (size,))
        self.bias = build.parameter(name + ".bias", (size,))

    def __call__(self, x: Tensor) -> Tensor:
        context = x.tape.autocast
        args = [x, add_scalar(self.weight), self.bias]
        if context is not None:
            args = [to(t, context.dtype) for t in args]
        with paused(x.tape):
            return layer_norm(*args)


class NemotronMLP:
    def __init__(self, spec: NemotronSpec, build: Builder):
        self.up_proj = build.linear("mlp.up_proj", spec.hidden_size, spec.intermediate_size, spec.mlp_bias)
        self.down_proj = build.linear("mlp.down_proj", spec.intermediate_size, spec.hidden_size, spec.mlp_bias)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.up_proj(x)))


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb`: of each head, the first elements are rotated; the rest, which may be none, is joined again."""
    rotary = cos.shape[-1]
    rest = q.shape[-1] - rotary
    q_rot, q_pass = narrow(q, -1, rotary), narrow(q, -1, rest)
    k_rot, k_pass = narrow(k, -1, rotary), narrow(k, -1, rest)
    q_embed, k_embed = rotate(q_rot, k_rot, cos, sin)
    return cat((q_embed, q_pass), -1), cat((k_embed, k_pass), -1)


class NemotronAttention:
    def __init__(self, spec: NemotronSpec, build: Builder):
        size, bias = spec.head_dim, spec.attention_bias
        queries, keys = spec.num_attention_heads * size, spec.num_key_value_heads * size
        self.head_dim = size
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, queries, bias)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, keys, bias)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, keys, bias)
        self.o_proj = build.linear("self_attn.o_proj", queries, spec.hidden_size, bias)
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = transpose(reshape(self.q_proj(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_proj(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        q, k = _rotate(q, k, cos, sin)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, (batch, tokens, -1))
        out = self.o_proj(out)
        return out, weights


class NemotronDecoderLayer:
    def __init__(self, spec: NemotronSpec, build: Builder):
        self.self_attn = NemotronAttention(spec, build)
        self.mlp = NemotronMLP(spec, build)
        self.input_layernorm = LayerNorm1P("input_layernorm", spec.hidden_size, build)
        self.post_attention_layernorm = LayerNorm1P("post_attention_layernorm", spec.hidden_size, build)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, cos, sin, mask)
        out = add(residual, out)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        return add(residual, out)


class NemotronModel:
    """The body of the model."""

    def __init__(self, spec: NemotronSpec, build: Builder):
        self.spec = spec
        self.attention = build.attention
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: NemotronDecoderLayer(spec, build))
        self.norm = LayerNorm1P("norm", spec.hidden_size, build)
        self.buffers = frequencies(build, spec.rotary_size)

    def forward(self, ids: Tensor) -> Tensor:
        tape, spec = ids.tape, self.spec
        batch, tokens = ids.shape
        embeds = self.embed_tokens(ids)
        positions = token_positions(tape, tokens)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, spec.window)
        hidden = embeds
        cos, sin = rotary_table(tape, tokens, spec.rotary_size, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, mask, positions)
        return self.norm(hidden)


HEADS = decoder_heads(NemotronModel)
