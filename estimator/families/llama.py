"""Decoders of the Llama kind: Llama, Mistral, Qwen2, Qwen3.

They differ in where linear layers have biases, whether queries and keys are normalised, and in the sliding window.
After transformers' modeling_llama.py, modeling_mistral.py, modeling_qwen2.py and modeling_qwen3.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from estimator import dtypes
from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.heads import decoder_heads
from estimator.families.layers import Layers
from estimator.families.modules import Module, rotary_table, token_positions
from estimator.specs.spec import DecoderSpec, RotaryDecoderSpec, Size
from estimator.tape.layout import Shape
from estimator.tape.math_attention import repeat_heads
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, transpose


class _Spec(RotaryDecoderSpec):
    """What the kinds have in common."""

    cached = tensor_parallel = True
    implementations: ClassVar[tuple[str, ...]] = ("transformers", "liger")
    qk_norm: ClassVar[bool] = False
    repeats_heads: ClassVar[bool] = False
    """Whether transformers before 4.48 repeated key heads for FlashAttention too."""

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        """Whether there are biases for queries, keys and values; in attention's output layer; in the feed-forward layers."""
        return False, False, False


class LlamaSpec(_Spec):
    implementations: ClassVar[tuple[str, ...]] = ("transformers", "fast-kernels", "liger", "torchtitan")

    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        return self.attention_bias, self.attention_bias, self.mlp_bias


class MistralSpec(_Spec):
    implementations = ("transformers", "fast-kernels", "liger")
    repeats_heads = True

    sliding_window: Size | None = 4096

    @property
    def window(self) -> int | None:
        return self.sliding_window


class Qwen2Spec(_Spec):
    repeats_heads = True
    modelled = {"use_sliding_window": (False,)}

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        return True, False, False


class Qwen3Spec(_Spec):
    modelled = {"use_sliding_window": (False,)}
    qk_norm = True

    attention_bias: bool = False

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        return self.attention_bias, self.attention_bias, False


SPECS = {"llama": LlamaSpec, "mistral": MistralSpec, "qwen2": Qwen2Spec, "qwen3": Qwen3Spec}


class SelfAttention:
    def __init__(self, spec: _Spec, build: Builder):
        size = spec.head_dim
        queries, keys = spec.num_attention_heads * size, spec.num_key_value_heads * size
        bias, output_bias, _ = spec.biases
        self.head_dim = size
        self.rotate, self.matched = build.kernels.rotate, build.kernels.matched
        self.repeats = build.kernels.release == "4.45" and spec.repeats_heads and build.attention == "flash_attention_2"
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, queries, bias)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, keys, bias)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, keys, bias)
        self.o_proj = build.linear("self_attn.o_proj", queries, spec.hidden_size, output_bias)
        self.q_norm = build.rms_norm("self_attn.q_norm", size) if spec.qk_norm else None
        self.k_norm = build.rms_norm("self_attn.k_norm", size) if spec.qk_norm else None
        self.cache = build.cache() if build.cache else None
        dropped = spec.attention_dropout if build.training else 0.0
        self.attend = Attention(build.attention, dropout=dropped, efficient=build.kernels.efficient)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        q, k, v = self.project(hidden, (batch, tokens, -1, self.head_dim))
        q, k, v = self.matched(q, k, v)
        q, k = self.rotate(q, k, cos, sin)
        if self.repeats:
            k, v = repeat_heads(q, k), repeat_heads(q, v)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        return self.o_proj(reshape(out, (batch, tokens, -1))), weights

    def project(self, hidden: Tensor, heads: Shape) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [batch, heads, tokens, size]."""
        q = reshape(self.q_proj(hidden), heads)
        q = transpose(q if self.q_norm is None else self.q_norm(q), 1, 2)
        k = reshape(self.k_proj(hidden), heads)
        k = transpose(k if self.k_norm is None else self.k_norm(k), 1, 2)
        return q, k, transpose(reshape(self.v_proj(hidden), heads), 1, 2)


class MLP:
    def __init__(self, spec: DecoderSpec, build: Builder, name: str = "mlp", width: int | None = None, bias: bool = False):
        width = width or spec.intermediate_size
        self.gate_proj = build.linear(name + ".gate_proj", spec.hidden_size, width, bias)
        self.up_proj = build.linear(name + ".up_proj", spec.hidden_size, width, bias)
        self.down_proj = build.linear(name + ".down_proj", width, spec.hidden_size, bias)
        self.gated = build.gated(spec.hidden_act)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.gated(x, self.gate_proj, self.up_proj))


class DecoderLayer:
    attention: type[SelfAttention] = SelfAttention

    def __init__(self, spec: _Spec, build: Builder, mlp: Callable[[Any, Builder], Module] | None = None):
        self.self_attn = self.attention(spec, build)
        self.mlp = mlp(spec, build) if mlp else MLP(spec, build, bias=spec.biases[2])
        self.input_layernorm = build.rms_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.rms_norm("post_attention_layernorm", spec.hidden_size)
        self.attention_join = build.join("mh_adapter", spec.hidden_size)
        self.output_join = build.join("output_adapter", spec.hidden_size)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, cos, sin, mask)
        out = self.attention_join(out, residual)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        return self.output_join(out, residual)


class Llama:
    """The body of the model."""

    layer = DecoderLayer

    def __init__(self, spec: _Spec, build: Builder):
        self.spec = spec
        self.attention = build.attention
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        self.layers = self.stack(spec, build)
        self.norm = self.rms_norm(build, spec.hidden_size)
        self.buffers = self.rotary_buffers(build)

    def rms_norm(self, build: Builder, size: int) -> Module:
        """The norm after the last layer."""
        return build.rms_norm("norm", size)

    def rotary_buffers(self, build: Builder) -> list[Tensor]:
        """What the rotary embedding is made of."""
        names = ("inv_freq", "original_inv_freq") if build.kernels.release == "5" else ("inv_freq",)
        return [build.buffer(name, (self.spec.head_dim // 2,), dtypes.float32) for name in names]

    def stack(self, spec: Any, build: Builder) -> Layers:
        """The layers, which models of this kind make otherwise."""
        return build.layers(spec.num_hidden_layers, lambda _: self.layer(spec, build))

    def embed(self, ids: Tensor) -> Tensor:
        """What the first layer gets."""
        return self.embed_tokens(ids)

    def forward(self, ids: Tensor) -> Tensor:
        tape, spec = ids.tape, self.spec
        batch, tokens = ids.shape
        embeds = self.embed(ids)
        positions = token_positions(tape, tokens)
        mask, *_held = self.masks(tape, batch, tokens, embeds.dtype)
        hidden = embeds
        cos, sin = rotary_table(tape, tokens, spec.head_dim, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, mask, positions)
        return self.norm(hidden)

    def masks(self, tape: Tape, batch: int, tokens: int, dtype: dtypes.DType) -> list[Tensor | None]:
        """The layers' mask, and others that are made with it."""
        return [causal_mask(tape, batch, tokens, dtype, self.attention, self.spec.window)]


HEADS = decoder_heads(Llama)
