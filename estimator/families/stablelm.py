"""StableLM: layer norms, rotary embeddings on a part of each head; in the 12B queries and keys normalised head by head, and
attention and feed-forward side by side.

After transformers' modeling_stablelm.py (5.23).
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.heads import decoder_heads
from estimator.families.modules import LayerNorm, rotary_table, rotate, token_positions
from estimator.families.rotary import PartialRotarySpec, frequencies
from estimator.specs.spec import Probability, Size
from estimator.tape.pointwise import add, dropout
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, narrow, reshape, split, transpose


class StableLmSpec(PartialRotarySpec):
    cached = True

    max_position_embeddings: Size | None = 4096
    partial_rotary_factor: float = 0.25
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    use_parallel_residual: bool = False
    hidden_dropout: Probability = 0.0

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.head_dim * self.num_attention_heads != self.hidden_size:
            raise ValueError(f"hidden_size {self.hidden_size} is not head_dim {self.head_dim} x {self.num_attention_heads} heads")
        return self


SPECS = {"stablelm": StableLmSpec}


class LayerNormPerHead:
    """A layer norm for each head, without bias."""

    def __init__(self, name: str, size: int, heads: int, build: Builder):
        self.norms = [LayerNorm(build.parameter(f"{name}.norms.{i}.weight", (size,)), None) for i in range(heads)]

    def __call__(self, x: Tensor) -> Tensor:
        states = split(x, (1,) * len(self.norms), 1)
        return cat([norm(state) for norm, state in zip(self.norms, states, strict=True)], 1)


class StableLmAttention:
    def __init__(self, spec: StableLmSpec, build: Builder):
        size, heads, keys = spec.head_dim, spec.num_attention_heads, spec.num_key_value_heads
        self.head_dim, self.rotary = size, spec.rotary_size
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, heads * size, spec.use_qkv_bias)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, keys * size, spec.use_qkv_bias)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, keys * size, spec.use_qkv_bias)
        self.o_proj = build.linear("self_attn.o_proj", spec.hidden_size, spec.hidden_size)
        self.q_layernorm = LayerNormPerHead("self_attn.q_layernorm", size, heads, build) if spec.qk_layernorm else None
        self.k_layernorm = LayerNormPerHead("self_attn.k_layernorm", size, keys, build) if spec.qk_layernorm else None
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = self.q_proj(hidden)
        k = self.k_proj(hidden)
        v = self.v_proj(hidden)
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
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
        out = self.o_proj(out)
        return out, weights


class StableLmMLP:
    def __init__(self, spec: StableLmSpec, build: Builder):
        self.gate_proj = build.linear("mlp.gate_proj", spec.hidden_size, spec.intermediate_size)
        self.up_proj = build.linear("mlp.up_proj", spec.hidden_size, spec.intermediate_size)
        self.down_proj = build.linear("mlp.down_proj", spec.intermediate_size, spec.hidden_size)
        self.gated = build.gated(spec.hidden_act)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.gated(x, self.gate_proj, self.up_proj))


class StableLmDecoderLayer:
    def __init__(self, spec: StableLmSpec, build: Builder):
        self.self_attn = StableLmAttention(spec, build)
        self.mlp = StableLmMLP(spec, build)
        self.input_layernorm = build.layer_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = (
            None if spec.use_parallel_residual else build.layer_norm("post_attention_layernorm", spec.hidden_size)
        )
        self.dropout = spec.hidden_dropout if build.training else 0.0

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        attended, _ = self.self_attn(out, cos, sin, mask)
        if self.post_attention_layernorm is None:
            fed = self.mlp(out)
            fed = dropout(fed, self.dropout)
            out = add(add(residual, attended), fed)
        else:
            residual = add(residual, attended)
            fed = self.mlp(self.post_attention_layernorm(residual))
            fed = dropout(fed, self.dropout)
            out = add(residual, fed)
        return out


class StableLmModel:
    """The body of the model."""

    def __init__(self, spec: StableLmSpec, build: Builder):
        self.spec = spec
        self.attention = build.attention
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: StableLmDecoderLayer(spec, build))
        self.norm = build.layer_norm("norm", spec.hidden_size)
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


HEADS = decoder_heads(StableLmModel)
