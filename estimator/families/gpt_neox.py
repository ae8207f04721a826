"""GPT-NeoX and Pythia: queries, keys and values in one layer, rotary positions on a part of each head, a parallel block.

After transformers' modeling_gpt_neox.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from estimator import dtypes
from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.heads import decoder_heads
from estimator.families.modules import ACTIVATIONS, rotary_table, rotate_part, token_positions
from estimator.specs.spec import Activation, FullHeadsSpec, Probability
from estimator.tape.pointwise import add, dropout
from estimator.tape.tensor import Tensor
from estimator.tape.views import contiguous, reshape, split, transpose


class GPTNeoXSpec(FullHeadsSpec):
    cached = True

    hidden_act: Activation = "gelu"
    hidden_dropout: Probability = 0.0
    attention_bias: bool = True
    use_parallel_residual: bool = True
    rotary_pct: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Part of each head that is rotated; newer configs have it in `rope_parameters`."""

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"rope_parameters"}

    @model_validator(mode="before")
    @classmethod
    def _rotary(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "rope_parameters" not in given:
            return given
        rope = given["rope_parameters"] or {}
        if not isinstance(rope, Mapping):
            raise ValueError("rope_parameters: write a mapping, with partial_rotary_factor in it")
        part = {"rotary_pct": rope["partial_rotary_factor"]} if "partial_rotary_factor" in rope else {}
        return {name: value for name, value in given.items() if name != "rope_parameters"} | part

    @property
    def rotated(self) -> int:
        """Elements of a head that are rotated: pairs."""
        return -(-int(self.head_dim * self.rotary_pct) // 2) * 2

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if not 0 < self.rotated <= self.head_dim:
            raise ValueError(f"rotary_pct {self.rotary_pct} of head_dim {self.head_dim} leaves no pairs to rotate")
        return self


SPECS = {"gpt_neox": GPTNeoXSpec}


class SelfAttention:
    def __init__(self, spec: GPTNeoXSpec, build: Builder):
        size = spec.hidden_size
        self.head_dim = spec.head_dim
        self.query_key_value = build.linear("attention.query_key_value", size, 3 * size, spec.attention_bias)
        self.dense = build.linear("attention.dense", size, size, spec.attention_bias)
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        size = self.head_dim
        fused = transpose(reshape(self.query_key_value(hidden), (batch, tokens, -1, 3 * size)), 1, 2)
        q, k, v = split(fused, (size, size, size), 3)
        q, k = rotate_part(q, k, cos, sin)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (batch, tokens, -1)))
        out = self.dense(out)
        return out, weights


class MLP:
    def __init__(self, spec: GPTNeoXSpec, build: Builder):
        self.dense_h_to_4h = build.linear("mlp.dense_h_to_4h", spec.hidden_size, spec.intermediate_size, bias=True)
        self.dense_4h_to_h = build.linear("mlp.dense_4h_to_h", spec.intermediate_size, spec.hidden_size, bias=True)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        out = self.dense_h_to_4h(x)
        out = self.act(out)
        return self.dense_4h_to_h(out)


class Layer:
    def __init__(self, spec: GPTNeoXSpec, build: Builder):
        self.parallel = spec.use_parallel_residual
        self.input_layernorm = build.layer_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.layer_norm("post_attention_layernorm", spec.hidden_size)
        self.dropout = spec.hidden_dropout if build.training else 0.0
        self.attention = SelfAttention(spec, build)
        self.mlp = MLP(spec, build)

    def __call__(self, hidden: Tensor, mask: Tensor | None, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        attended, _ = self.attention(self.input_layernorm(hidden), cos, sin, mask)
        attended = dropout(attended, self.dropout)
        if self.parallel:
            fed = self.mlp(self.post_attention_layernorm(hidden))
            fed = dropout(fed, self.dropout)
            return add(add(fed, attended), hidden)
        attended = add(attended, hidden)
        fed = self.mlp(self.post_attention_layernorm(attended))
        fed = dropout(fed, self.dropout)
        return add(fed, attended)


class GPTNeoX:
    """The body of the model."""

    def __init__(self, spec: GPTNeoXSpec, build: Builder):
        self.spec = spec
        self.attention = build.attention
        self.embed_in = build.embedding("embed_in", spec.vocab_size, spec.hidden_size)
        self.dropout = spec.hidden_dropout if build.training else 0.0
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build))
        self.final_layer_norm = build.layer_norm("final_layer_norm", spec.hidden_size)
        frequencies = (spec.rotated // 2,)
        self.buffers = [build.buffer(name, frequencies, dtypes.float32) for name in ("inv_freq", "original_inv_freq")]

    def forward(self, ids: Tensor) -> Tensor:
        tape = ids.tape
        batch, tokens = ids.shape
        embeds = self.embed_in(ids)
        positions = token_positions(tape, tokens)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None)
        hidden = dropout(embeds, self.dropout)
        cos, sin = rotary_table(tape, tokens, self.spec.rotated, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, mask, positions, cos, sin)
        return self.final_layer_norm(hidden)


HEADS = decoder_heads(GPTNeoX)
