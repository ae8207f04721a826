"""Gemma, Gemma 2 and the text model of Gemma 3: scaled embeddings, norms with one plus a weight, soft-capped scores.

From Gemma 2 on blocks are normalised before and after, and layers alternate between a sliding window and all tokens.
After transformers' modeling_gemma.py, modeling_gemma2.py and modeling_gemma3.py (5.23).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import MakeNorm, PreNorm, Sandwich, SelfAttention
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention, normed_after_all
from estimator.families.heads import Body, CausalLM, decoder_heads
from estimator.families.layers import Layer
from estimator.families.modules import Module, rotate
from estimator.families.spec import Activation, DecoderSpec, RotaryDecoderSpec, Size, called
from estimator.families.two_way import two_way_masks
from estimator.families.windows import LayerType, WindowedSpec, causal_masks, layer_types
from estimator.tape import dtypes
from estimator.tape.cut import cut_cross_entropy
from estimator.tape.pointwise import add_scalar, mean_last, mul, mul_scalar, pow_scalar, rsqrt, tanh, to
from estimator.tape.tensor import Tensor

Cap = Annotated[float, Field(gt=0)]


class _Spec(RotaryDecoderSpec):
    """What the three have in common."""

    qk_norm: ClassVar[bool] = False
    post_norms: ClassVar[bool] = True
    second_norm: ClassVar[str] = "post_attention_layernorm"
    """The name of the norm before the feed-forward layer, where there are no others but attention's."""
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
    modelled = {"use_bidirectional_attention": (None, False)}
    can = Abilities(batches=("padding",), gguf=True, graph="gemma")
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
    modelled = {"use_bidirectional_attention": (None, False)}
    can = Abilities(gguf=True, graph="gemma-2")
    attentions = ("eager", "flash_attention_2")
    default_period = 2

    max_position_embeddings: Size | None = 8192
    final_logit_softcapping: Cap | None = 30.0
    attn_logit_softcapping: Cap | None = 50.0

    @property
    def softcap(self) -> bool:
        return self.attn_logit_softcapping is not None


class Gemma3Spec(_WindowedSpec):
    """`attn_logit_softcapping` is in its configuration, but nothing reads it.

    `use_bidirectional_attention`: tokens see each other in both directions (EmbeddingGemma). Its `sliding_window` is then as its
    config.json has it: how many tokens are seen before and behind together, of which the configuration makes those on one side.
    """

    can = Abilities(gguf=True, graph="gemma-3")
    default_period = 6
    qk_norm = tables = True

    max_position_embeddings: Size | None = 131072
    sliding_window_pattern: Size = 6
    final_logit_softcapping: Cap | None = None
    use_bidirectional_attention: bool = False

    @property
    def encodes(self) -> bool:
        return self.use_bidirectional_attention

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        return () if self.encodes else super().cache_layers


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


def gemma(spec: _Spec, build: Builder, looks_back: bool = True) -> Decoder:
    """The body of the model. `looks_back`: whether tokens see those before them only where no mask says what they see, which
    PaliGemma's do not (`use_bidirectional_attention`, which its configuration sets)."""
    norm, types = partial(RMSNorm, build), layer_types(spec)

    def head_norm(which: str, heads: int) -> RMSNorm:
        return RMSNorm(build, f"self_attn.{which}_norm", spec.head_dim)

    def layer(_: LayerType) -> Layer:
        attention = GroupedQueryAttention(
            spec,
            build,
            spec.attention_bias,
            spec.attention_bias,
            norm=head_norm if spec.qk_norm else None,
            project=normed_after_all,
            rotate=rotate,
            softcap=spec.softcap,
            causal=looks_back and not spec.encodes,
        )
        mlp = GatedMLP(spec, build)
        if spec.post_norms:
            return _sandwich(spec, attention, mlp, norm)
        return PreNorm(spec, build, attention, mlp, norm, names=("input_layernorm", spec.second_norm))

    rotary = Rotary(spec.head_dim, kinds=types if spec.tables else ())
    scale = build.buffer("embed_scale", (), build.dtype)
    masks = two_way_masks if spec.encodes else causal_masks
    return Decoder(spec, build, layer, types, rotary=rotary, norm=norm, scale=scale, masks=masks)


def _sandwich(spec: _Spec, attention: SelfAttention, mlp: Module, norm: MakeNorm) -> Sandwich:
    """Gemma 2's and 3's: what attention and the feed-forward layer give is normalised before it is added."""
    size = spec.hidden_size
    before, after = norm("input_layernorm", size), norm("post_attention_layernorm", size)
    return Sandwich(
        attention, mlp, (before, after, norm("pre_feedforward_layernorm", size), norm("post_feedforward_layernorm", size))
    )


class Gemma2CausalLM(CausalLM):
    """Gemma 2's, and Gemma 3's where its configuration says so: logits go through a tanh."""

    cuts = True

    def __init__(self, body: Body, spec: DecoderSpec, build: Builder, bias: bool = False):
        super().__init__(body, spec, build, bias)
        if self.loss.fused is cut_cross_entropy:
            self.loss = replace(self.loss, fused=partial(cut_cross_entropy, capped=True))

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        logits = mul_scalar(logits)
        logits = tanh(logits)
        return mul_scalar(logits)


def causal_lm(spec: _Spec, build: Builder, looks_back: bool = True) -> CausalLM:
    """The model with its output layer."""
    capped = isinstance(spec, Gemma2Spec | Gemma3Spec) and spec.final_logit_softcapping is not None
    return (Gemma2CausalLM if capped else CausalLM)(gemma(spec, build, looks_back), spec, build)


HEADS = decoder_heads(gemma) | {"causal-lm": causal_lm}
