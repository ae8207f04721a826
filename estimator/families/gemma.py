"""Gemma, Gemma 2 and the text model of Gemma 3: scaled embeddings, norms with one plus a weight, soft-capped scores.

From Gemma 2 on blocks are normalised before and after, and layers alternate between a sliding window and all tokens.
After transformers' modeling_gemma.py, modeling_gemma2.py and modeling_gemma3.py (5.23).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from estimator import dtypes
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.heads import CausalLM, decoder_heads
from estimator.families.llama import MLP
from estimator.families.modules import rotary_table, rotate, token_positions
from estimator.families.windows import WindowedSpec, causal_masks, layer_types
from estimator.specs.spec import Activation, RotaryDecoderSpec, Size, called
from estimator.tape.pointwise import add, add_scalar, mean_last, mul, mul_scalar, pow_scalar, rsqrt, tanh, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, transpose

Cap = Annotated[float, Field(gt=0)]


class _Spec(RotaryDecoderSpec):
    """What the three have in common."""

    modelled = {"use_bidirectional_attention": (None, False)}
    qk_norm: ClassVar[bool] = False
    post_norms: ClassVar[bool] = True
    tables: ClassVar[bool] = False
    """Whether each kind of layer has rotary frequencies of its own."""

    tie_word_embeddings: bool = True
    attention_bias: bool = False

    @property
    def softcap(self) -> bool:
        """Whether attention's scores go through a tanh."""
        return False

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": 4, "head_dim": 256}


class GemmaSpec(_Spec):
    cached = tensor_parallel = True
    post_norms = False

    max_position_embeddings: Size | None = 8192
    hidden_act: Activation = "gelu_pytorch_tanh"

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": 16, "head_dim": 256}


class _WindowedSpec(_Spec, WindowedSpec):
    hidden_act: Activation = called("hidden_activation", "gelu_pytorch_tanh")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} attention heads")
        return self


class Gemma2Spec(_WindowedSpec):
    attentions = ("eager", "flash_attention_2")
    default_period = 2

    max_position_embeddings: Size | None = 8192
    final_logit_softcapping: Cap | None = 30.0
    attn_logit_softcapping: Cap | None = 50.0

    @property
    def softcap(self) -> bool:
        return self.attn_logit_softcapping is not None


class Gemma3Spec(_WindowedSpec):
    """`attn_logit_softcapping` is in its configuration, but nothing reads it."""

    default_period = 6
    qk_norm = tables = True

    max_position_embeddings: Size | None = 131072
    sliding_window_pattern: Size = 6
    final_logit_softcapping: Cap | None = None


SPECS = {"gemma": GemmaSpec, "gemma2": Gemma2Spec, "gemma3_text": Gemma3Spec}


class RMSNorm:
    """Root-mean-square normalisation in float32, with one plus a weight as its factor."""

    def __init__(self, build: Builder, name: str, size: int):
        self.weight = build.parameter(name + ".weight", (size,))

    def _norm(self, x: Tensor) -> Tensor:
        return mul(x, rsqrt(add_scalar(mean_last(pow_scalar(x)))))

    def __call__(self, x: Tensor) -> Tensor:
        out = self._norm(to(x, dtypes.float32))
        out = mul(out, add_scalar(to(self.weight, dtypes.float32)))
        return to(out, x.dtype)


class SelfAttention:
    def __init__(self, spec: _Spec, build: Builder):
        size, bias = spec.head_dim, spec.attention_bias
        queries, keys = spec.num_attention_heads * size, spec.num_key_value_heads * size
        self.head_dim = size
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, queries, bias)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, keys, bias)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, keys, bias)
        self.o_proj = build.linear("self_attn.o_proj", queries, spec.hidden_size, bias)
        self.q_norm = RMSNorm(build, "self_attn.q_norm", size) if spec.qk_norm else None
        self.k_norm = RMSNorm(build, "self_attn.k_norm", size) if spec.qk_norm else None
        self.cache = build.cache() if build.cache else None
        dropout = spec.attention_dropout if build.training else 0.0
        self.attend = Attention(build.attention, dropout=dropout, softcap=spec.softcap)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = transpose(reshape(self.q_proj(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_proj(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        q, k = rotate(q, k, cos, sin)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        return self.o_proj(reshape(out, (batch, tokens, -1))), weights


class DecoderLayer:
    def __init__(self, spec: _Spec, build: Builder):
        self.self_attn = SelfAttention(spec, build)
        self.mlp = MLP(spec, build)
        self.input_layernorm = RMSNorm(build, "input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = RMSNorm(build, "post_attention_layernorm", spec.hidden_size)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, cos, sin, mask)
        out = add(residual, out)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        return add(residual, out)


class PostNormDecoderLayer(DecoderLayer):
    """Gemma 2's and 3's: what attention and the feed-forward layers give is normalised before it is added."""

    def __init__(self, spec: _Spec, build: Builder):
        super().__init__(spec, build)
        self.pre_feedforward_layernorm = RMSNorm(build, "pre_feedforward_layernorm", spec.hidden_size)
        self.post_feedforward_layernorm = RMSNorm(build, "post_feedforward_layernorm", spec.hidden_size)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, cos, sin, mask)
        out = self.post_attention_layernorm(out)
        out = add(residual, out)
        residual = out
        out = self.pre_feedforward_layernorm(out)
        out = self.mlp(out)
        out = self.post_feedforward_layernorm(out)
        return add(residual, out)


class Gemma:
    """The body of the model."""

    def __init__(self, spec: _Spec, build: Builder):
        self.spec = spec
        self.attention = build.attention
        scale = build.buffer("embed_scale", (), build.dtype)
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size, scale)
        layer = PostNormDecoderLayer if spec.post_norms else DecoderLayer
        self.layers = build.layers(layer_types(spec), lambda _: layer(spec, build))
        self.norm = RMSNorm(build, "norm", spec.hidden_size)
        self.types = sorted(set(layer_types(spec)))
        tables, frequencies = len(self.types) if spec.tables else 1, (spec.head_dim // 2,)
        self.buffers = [build.buffer("inv_freq", frequencies, dtypes.float32) for _ in range(2 * tables)]

    def forward(self, ids: Tensor) -> Tensor:
        tape, spec = ids.tape, self.spec
        batch, tokens = ids.shape
        embeds = self.embed_tokens(ids)
        positions = token_positions(tape, tokens)
        masks = causal_masks(spec, tape, batch, tokens, embeds.dtype, self.attention)
        hidden = embeds
        if spec.tables:
            tables = {kind: rotary_table(tape, tokens, spec.head_dim, hidden.dtype) for kind in self.types}
        else:
            tables = dict.fromkeys(self.types, rotary_table(tape, tokens, spec.head_dim, hidden.dtype))
        for kind, layer in self.layers.by_kind():
            hidden = layer(hidden, *tables[kind], masks[kind], positions)
        return self.norm(hidden)


class Gemma2CausalLM(CausalLM):
    """Gemma 2's, and Gemma 3's where its configuration says so: logits go through a tanh."""

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        logits = mul_scalar(logits)
        logits = tanh(logits)
        return mul_scalar(logits)


def _causal_lm(spec: _Spec, build: Builder) -> CausalLM:
    capped = isinstance(spec, Gemma2Spec | Gemma3Spec) and spec.final_logit_softcapping is not None
    return (Gemma2CausalLM if capped else CausalLM)(Gemma(spec, build), spec, build)


HEADS = decoder_heads(Gemma) | {"causal-lm": _causal_lm}
