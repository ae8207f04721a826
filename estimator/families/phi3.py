"""Phi-3, Phi-3.5 and Phi-4: one projection for queries, keys and values, one for the feed-forward layer's gate and input.

After transformers' modeling_phi3.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from estimator import dtypes
from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.heads import decoder_heads
from estimator.families.modules import ACTIVATIONS, rotary_table, rotated, token_positions
from estimator.families.rotary import PartialRotarySpec, frequencies
from estimator.specs.spec import DecoderSpec, Probability, Size
from estimator.tape.pointwise import add, dropout, mul
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, narrow, reshape, split, transpose, unsqueeze


class Phi3Spec(PartialRotarySpec):
    cached = True
    ropes = ("default", "longrope", "su", "yarn")

    max_position_embeddings: Size | None = 4096
    resid_pdrop: Probability = 0.0
    sliding_window: Size | None = None
    rope_type: Literal["default", "longrope"] = "default"
    """`longrope` keeps another table of frequencies, for sequences longer than the model was first made for."""

    @property
    def window(self) -> int | None:
        return self.sliding_window

    @classmethod
    def from_rope(cls, kind: str, nested: Mapping[str, Any]) -> dict[str, Any]:
        """transformers takes the older names for longrope, too."""
        return super().from_rope(kind, nested) | ({} if kind == "default" else {"rope_type": "longrope"})

    def config(self) -> dict[str, Any]:
        """With factors for longrope, which transformers asks for; they change no shape."""
        fields = super().config()
        if fields.pop("rope_type") == "longrope":
            factors = [1.0] * (self.rotary_size // 2)
            fields["rope_parameters"] = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors}
        return fields


SPECS = {"phi3": Phi3Spec}


class FusedMLP:
    """Gate and input from one layer (`Phi3MLP`, `Glm4MLP`)."""

    def __init__(self, spec: DecoderSpec, build: Builder):
        self.gate_up_proj = build.linear("mlp.gate_up_proj", spec.hidden_size, 2 * spec.intermediate_size)
        self.down_proj = build.linear("mlp.down_proj", spec.intermediate_size, spec.hidden_size)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        up = self.gate_up_proj(x)
        half = up.shape[-1] // 2
        gate, up = split(up, (half, half), 2)
        up = mul(up, self.act(gate))
        return self.down_proj(up)


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb`: of each head, the first elements are rotated; the rest, which may be none, is joined again."""
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    rotary = cos.shape[-1]
    rest = q.shape[-1] - rotary
    q_rot, q_pass = narrow(q, -1, rotary), narrow(q, -1, rest)
    k_rot, k_pass = narrow(k, -1, rotary), narrow(k, -1, rest)
    q_embed = cat((rotated(q_rot, c, s), q_pass), -1)
    k_embed = cat((rotated(k_rot, c, s), k_pass), -1)
    return q_embed, k_embed


class Phi3Attention:
    def __init__(self, spec: Phi3Spec, build: Builder):
        size = spec.head_dim
        self.queries, self.keys = spec.num_attention_heads * size, spec.num_key_value_heads * size
        self.head_dim = size
        self.o_proj = build.linear("self_attn.o_proj", self.queries, spec.hidden_size)
        self.qkv_proj = build.linear("self_attn.qkv_proj", spec.hidden_size, self.queries + 2 * self.keys)
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        qkv = self.qkv_proj(hidden)
        q = narrow(qkv, -1, self.queries)
        k = narrow(qkv, -1, self.keys)
        v = narrow(qkv, -1, self.keys)
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        q, k = _rotate(q, k, cos, sin)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, (batch, tokens, -1))
        out = self.o_proj(out)
        return out, weights


class Phi3DecoderLayer:
    def __init__(self, spec: Phi3Spec, build: Builder):
        self.self_attn = Phi3Attention(spec, build)
        self.mlp = FusedMLP(spec, build)
        self.input_layernorm = build.rms_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.rms_norm("post_attention_layernorm", spec.hidden_size)
        self.dropout = spec.resid_pdrop if build.training else 0.0

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, cos, sin, mask)
        out = add(residual, dropout(out, self.dropout))
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        return add(residual, dropout(out, self.dropout))


class Phi3Model:
    """The body of the model."""

    def __init__(self, spec: Phi3Spec, build: Builder):
        self.spec = spec
        self.attention = build.attention
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Phi3DecoderLayer(spec, build))
        self.norm = build.rms_norm("norm", spec.hidden_size)
        self.buffers = frequencies(build, spec.rotary_size)
        if spec.rope_type == "longrope":
            self.buffers.append(build.buffer("long_inv_freq", (spec.rotary_size // 2,), dtypes.float32))

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


HEADS = decoder_heads(Phi3Model)
