"""GLM-4 (0414): norms before and after each block, half of each head rotated in neighbouring pairs, gate and input in one layer.

After transformers' modeling_glm4.py (5.23).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.heads import decoder_heads
from estimator.families.modules import rotary_table, token_positions
from estimator.families.phi3 import FusedMLP
from estimator.families.rotary import PartialRotarySpec, frequencies
from estimator.specs.spec import Size
from estimator.tape.pointwise import add, mul, neg
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, every_second, narrow, reshape, stack_last, transpose, unsqueeze


class Glm4Spec(PartialRotarySpec):
    cached = True

    max_position_embeddings: Size | None = 131072
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    attention_bias: bool = True


SPECS = {"glm4": Glm4Spec}


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb`: each number of the table's first half is repeated for both of a pair; the rest is joined again."""
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    c = empty(c.tape, c.shape, c.dtype, "repeat_interleave")
    s = empty(s.tape, s.shape, s.dtype, "repeat_interleave")
    rotary, rest = c.shape[-1], q.shape[-1] - c.shape[-1]
    q_rot, q_pass = narrow(q, -1, rotary), narrow(q, -1, rest)
    k_rot, k_pass = narrow(k, -1, rotary), narrow(k, -1, rest)
    q_embed = add(mul(q_rot, c), mul(_rotate_half(q_rot), s))
    k_embed = add(mul(k_rot, c), mul(_rotate_half(k_rot), s))
    q_embed = cat((q_embed, q_pass), -1)
    k_embed = cat((k_embed, k_pass), -1)
    return q_embed, k_embed


def _rotate_half(x: Tensor) -> Tensor:
    first, second = every_second(x), every_second(x)
    return reshape(stack_last((neg(second), first)), x.shape)


class SelfAttention:
    def __init__(self, spec: Glm4Spec, build: Builder):
        size, bias = spec.head_dim, spec.attention_bias
        queries, keys = spec.num_attention_heads * size, spec.num_key_value_heads * size
        self.head_dim = size
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, queries, bias)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, keys, bias)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, keys, bias)
        self.o_proj = build.linear("self_attn.o_proj", queries, spec.hidden_size)
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


class DecoderLayer:
    def __init__(self, spec: Glm4Spec, build: Builder):
        self.self_attn = SelfAttention(spec, build)
        self.mlp = FusedMLP(spec, build)
        self.input_layernorm = build.rms_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.rms_norm("post_attention_layernorm", spec.hidden_size)
        self.post_self_attn_layernorm = build.rms_norm("post_self_attn_layernorm", spec.hidden_size)
        self.post_mlp_layernorm = build.rms_norm("post_mlp_layernorm", spec.hidden_size)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, cos, sin, mask)
        out = self.post_self_attn_layernorm(out)
        out = add(residual, out)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        out = self.post_mlp_layernorm(out)
        return add(residual, out)


class Glm4:
    """The body of the model."""

    def __init__(self, spec: Glm4Spec, build: Builder):
        self.spec = spec
        self.attention = build.attention
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: DecoderLayer(spec, build))
        self.norm = build.rms_norm("norm", spec.hidden_size)
        self.buffers = frequencies(build, spec.rotary_size)

    def forward(self, ids: Tensor) -> Tensor:
        tape, spec = ids.tape, self.spec
        batch, tokens = ids.shape
        embeds = self.embed_tokens(ids)
        positions = token_positions(tape, tokens)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None)
        hidden = embeds
        cos, sin = rotary_table(tape, tokens, spec.rotary_size, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, mask, positions)
        return self.norm(hidden)


HEADS = decoder_heads(Glm4)
