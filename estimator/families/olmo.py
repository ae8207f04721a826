"""OLMo, OLMo 2 and Olmo 3: rotary embeddings in float32, and norms without weights or after each block.

OLMo normalises without weights and may clip queries, keys and values. OLMo 2 normalises what attention and the feed-forward
layers give, and queries and keys. In Olmo 3 layers alternate between a sliding window and all tokens.
After transformers' modeling_olmo.py, modeling_olmo2.py and modeling_olmo3.py (5.23).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from estimator import dtypes
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.heads import decoder_heads
from estimator.families.llama import MLP
from estimator.families.modules import rotary_table, rotate, token_positions
from estimator.families.windows import WindowedSpec, causal_masks, layer_types
from estimator.specs.spec import RotaryDecoderSpec
from estimator.tape.normalization import layer_norm
from estimator.tape.pointwise import add, add_scalar, clamp_in_place, mean_last, mul, pow_scalar, rsqrt, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, transpose


class _Spec(RotaryDecoderSpec):
    """What the three have in common."""

    norms: ClassVar[bool] = True
    """Whether there are norms with weights: after each block, and of queries and keys."""

    attention_bias: bool = False

    @property
    def clips(self) -> bool:
        """Whether queries, keys and values are cut off at a number."""
        return False


class OlmoSpec(_Spec):
    cached = tensor_parallel = True
    norms = False

    clip_qkv: Annotated[float, Field(gt=0)] | None = None

    @property
    def clips(self) -> bool:
        return self.clip_qkv is not None


class Olmo2Spec(_Spec):
    cached = True


class Olmo3Spec(_Spec, WindowedSpec):
    default_period = 4


SPECS = {"olmo": OlmoSpec, "olmo2": Olmo2Spec, "olmo3": Olmo3Spec}


class LayerNorm:
    """torch's layer norm in float32, without weights."""

    def __call__(self, x: Tensor) -> Tensor:
        return to(layer_norm(to(x, dtypes.float32), None, None), x.dtype)


class RMSNorm:
    """Root-mean-square normalisation in float32, weighted before it is cast back."""

    def __init__(self, build: Builder, name: str, size: int):
        self.weight = build.parameter(name + ".weight", (size,))

    def __call__(self, x: Tensor) -> Tensor:
        out = to(x, dtypes.float32)
        variance = mean_last(pow_scalar(out))
        out = mul(out, rsqrt(add_scalar(variance)))
        return to(mul(self.weight, out), x.dtype)


def rotate_in_float32(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated with cosines and sines in float32, and cast back."""
    rotated_q, rotated_k = rotate(q, k, cos, sin)
    return to(rotated_q, q.dtype), to(rotated_k, k.dtype)


class SelfAttention:
    def __init__(self, spec: _Spec, build: Builder):
        size, bias = spec.head_dim, spec.attention_bias
        queries, keys = spec.num_attention_heads * size, spec.num_key_value_heads * size
        self.head_dim, self.clips = size, spec.clips
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, queries, bias)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, keys, bias)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, keys, bias)
        self.o_proj = build.linear("self_attn.o_proj", queries, spec.hidden_size, bias)
        self.q_norm = RMSNorm(build, "self_attn.q_norm", queries) if spec.norms else None
        self.k_norm = RMSNorm(build, "self_attn.k_norm", keys) if spec.norms else None
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = self.q_proj(hidden) if self.q_norm is None else self.q_norm(self.q_proj(hidden))
        k = self.k_proj(hidden) if self.k_norm is None else self.k_norm(self.k_proj(hidden))
        v = self.v_proj(hidden)
        if self.clips:
            q = clamp_in_place(q)
            k = clamp_in_place(k)
            v = clamp_in_place(v)
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        q, k = rotate_in_float32(q, k, cos, sin)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        return self.o_proj(reshape(out, (batch, tokens, -1))), weights


class OlmoDecoderLayer:
    def __init__(self, spec: _Spec, build: Builder):
        self.self_attn = SelfAttention(spec, build)
        self.mlp = MLP(spec, build)
        self.input_layernorm = LayerNorm()
        self.post_attention_layernorm = LayerNorm()

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, cos, sin, mask)
        out = add(residual, out)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        return add(residual, out)


class Olmo2DecoderLayer:
    def __init__(self, spec: _Spec, build: Builder):
        self.self_attn = SelfAttention(spec, build)
        self.mlp = MLP(spec, build)
        self.post_attention_layernorm = RMSNorm(build, "post_attention_layernorm", spec.hidden_size)
        self.post_feedforward_layernorm = RMSNorm(build, "post_feedforward_layernorm", spec.hidden_size)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out, _ = self.self_attn(hidden, cos, sin, mask)
        out = self.post_attention_layernorm(out)
        out = add(residual, out)
        residual = out
        out = self.mlp(out)
        out = self.post_feedforward_layernorm(out)
        return add(residual, out)


class Olmo:
    """The body of the model."""

    def __init__(self, spec: _Spec, build: Builder):
        self.spec = spec
        self.attention = build.attention
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        layer = Olmo2DecoderLayer if spec.norms else OlmoDecoderLayer
        self.layers = build.layers(layer_types(spec), lambda _: layer(spec, build))
        self.norm = RMSNorm(build, "norm", spec.hidden_size) if spec.norms else LayerNorm()
        self.types = sorted(set(layer_types(spec)))
        self.buffers = [build.buffer("inv_freq", (spec.head_dim // 2,), dtypes.float32) for _ in range(2 * len(self.types))]

    def forward(self, ids: Tensor) -> Tensor:
        tape, spec = ids.tape, self.spec
        batch, tokens = ids.shape
        embeds = self.embed_tokens(ids)
        positions = token_positions(tape, tokens)
        masks = causal_masks(spec, tape, batch, tokens, embeds.dtype, self.attention)
        hidden = embeds
        tables = {kind: rotary_table(tape, tokens, spec.head_dim, dtypes.float32) for kind in self.types}
        for kind, layer in self.layers.by_kind():
            hidden = layer(hidden, *tables[kind], masks[kind], positions)
        return self.norm(hidden)


HEADS = decoder_heads(Olmo)
