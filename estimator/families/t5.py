"""T5, v1.1, Flan, mT5 and UMT5: a relative bias in attention, norms that only scale, feed-forward layers with or without a gate.

After transformers' modeling_t5.py, modeling_mt5.py and modeling_umt5.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.encoders import refuse_quantization
from estimator.families.heads import Head
from estimator.families.modules import ACTIVATIONS, Embedding
from estimator.families.relative import RelativeAttention, Sizes
from estimator.families.seq2seq import ClassificationHead, Seq2SeqClassification, Seq2SeqLM
from estimator.families.spec import Depth, ModelSpec, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.checkpoint import EVERY
from estimator.tape.pointwise import add, add_scalar, clamp_between, dropout, mean_last, mul, pow_scalar, rsqrt, to
from estimator.tape.tensor import Tensor, empty


class T5Spec(ModelSpec):
    """`tie_word_embeddings` false is v1.1: an output layer of its own, and hidden states that are not scaled for it."""

    by_position = EVERY
    last_vllm = "none"
    why_not_vllm = "of encoder-decoders its registry has those that hear or see"
    modelled = {"is_encoder_decoder": (True,), "is_decoder": (False,)}
    attentions = ("sdpa", "eager")
    shares_bias: ClassVar[bool] = True
    """Whether the first layer of a stack makes the relative bias of all."""

    vocab_size: Size
    hidden_size: Size = called("d_model")
    head_dim: Size = called("d_kv", 64)
    intermediate_size: Size = called("d_ff")
    num_hidden_layers: Depth = called("num_layers")
    num_decoder_layers: Depth | None = None
    num_attention_heads: Size = called("num_heads")
    relative_attention_num_buckets: Size = 32
    dropout_rate: Probability = 0.1
    classifier_dropout: Probability = 0.0
    feed_forward_proj: str = Field("relu", pattern=r"^(gated-)?[a-z_]+$")
    tie_word_embeddings: bool = True

    @property
    def depth(self) -> int:
        return self.num_hidden_layers + (self.num_decoder_layers or self.num_hidden_layers)

    @property
    def scales(self) -> bool:
        """Whether hidden states are scaled for the output layer."""
        return self.tie_word_embeddings

    @property
    def gated(self) -> bool:
        return self.feed_forward_proj.startswith("gated-")

    @property
    def activation(self) -> str:
        """A gated gelu is GPT-2's."""
        return "gelu_new" if self.feed_forward_proj == "gated-gelu" else self.feed_forward_proj.removeprefix("gated-")

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"feed_forward_proj {self.feed_forward_proj!r} has none of the activations {', '.join(ACTIVATIONS)}")
        return self


class MT5Spec(T5Spec):
    """T5 v1.1 in many languages: a gate, an output layer of its own, and nothing that is scaled for it."""

    feed_forward_proj: str = Field("gated-gelu", pattern=r"^(gated-)?[a-z_]+$")
    tie_word_embeddings: bool = False

    @property
    def scales(self) -> bool:
        return False


class UMT5Spec(T5Spec):
    """mT5 with a relative bias of its own in each layer. transformers ties its output layer whatever a config says."""

    shares_bias = False

    feed_forward_proj: str = Field("gated-gelu", pattern=r"^(gated-)?[a-z_]+$")

    @model_validator(mode="before")
    @classmethod
    def _tied(cls, given: Any) -> Any:
        tied = "tie_word_embeddings"
        return {name: value for name, value in given.items() if name != tied} if isinstance(given, Mapping) else given


SPECS = {"t5": T5Spec, "mt5": MT5Spec, "umt5": UMT5Spec}


class LayerNorm:
    """Scales only (`T5LayerNorm`): in float32, and from there to the weight's type if that is half precision."""

    def __init__(self, name: str, spec: T5Spec, build: Builder):
        self.weight = build.parameter(name + ".weight", (spec.hidden_size,))

    def __call__(self, x: Tensor) -> Tensor:
        variance = mean_last(pow_scalar(to(x, dtypes.float32)))
        out = mul(x, rsqrt(add_scalar(variance)))
        if self.weight.dtype is not dtypes.float32:
            out = to(out, self.weight.dtype)
        return mul(self.weight, out)


class Attention:
    """A norm, attention, and the sum with what came in (`T5LayerSelfAttention`, `T5LayerCrossAttention`)."""

    def __init__(self, name: str, causal: bool, biased: bool, spec: T5Spec, build: Builder):
        sizes = Sizes(
            spec.hidden_size, spec.num_attention_heads, spec.head_dim, spec.relative_attention_num_buckets, spec.dropout_rate
        )
        self.attention = RelativeAttention(name, causal, biased, sizes, build, spec.shares_bias)
        self.norm = LayerNorm("layer_norm", spec, build)
        self.dropout = spec.dropout_rate

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, bias: Tensor | None, other: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        normed = self.norm(hidden)
        out, bias, weights = self.attention(normed, normed if other is None else other, mask, bias)
        out = add(hidden, dropout(out, self.dropout))
        return out, bias, weights


class FeedForward:
    """A norm, two or three linear layers, and the sum (`T5LayerFF`). The last one is handed its weight's type."""

    def __init__(self, spec: T5Spec, build: Builder):
        name = "DenseReluDense."
        first = ("wi_0", "wi_1") if spec.gated else ("wi",)
        self.wi = [build.linear(name + wi, spec.hidden_size, spec.intermediate_size) for wi in first]
        self.wo = build.linear(name + "wo", spec.intermediate_size, spec.hidden_size)
        self.norm = LayerNorm("layer_norm", spec, build)
        self.act, self.dropout = ACTIVATIONS[spec.activation], spec.dropout_rate

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self.norm(hidden)
        out = self._gated(out) if len(self.wi) == 2 else self._plain(out)
        return add(hidden, dropout(out, self.dropout))

    def _plain(self, x: Tensor) -> Tensor:
        out = self.wi[0](x)
        out = self.act(out)
        out = dropout(out, self.dropout)
        out = self._as_weight(out)
        return self.wo(out)

    def _gated(self, x: Tensor) -> Tensor:
        gate = self.act(self.wi[0](x))
        linear = self.wi[1](x)
        out = mul(gate, linear)
        out = dropout(out, self.dropout)
        out = self._as_weight(out)
        return self.wo(out)

    def _as_weight(self, x: Tensor) -> Tensor:
        inner: Any = getattr(self.wo, "base", self.wo)
        return to(x, inner.weight.dtype)


class Block:
    """A layer of the encoder, or with cross-attention one of the decoder."""

    def __init__(self, decodes: bool, biased: bool, spec: T5Spec, build: Builder):
        self.self_attention = Attention("SelfAttention", decodes, biased, spec, build)
        self.cross_attention = Attention("EncDecAttention", False, False, spec, build) if decodes else None
        self.feed_forward = FeedForward(spec, build)

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, bias: Tensor | None, encoded: Tensor | None, cross_bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        out, bias, _ = self.self_attention(hidden, mask, bias)
        most = _largest(out)  # which lives until the next one is made
        out = _clamped(out, most)
        if self.cross_attention is not None and encoded is not None:
            out, cross_bias, _ = self.cross_attention(out, None, cross_bias, encoded)
            most = _largest(out)
            out = _clamped(out, most)
        out = self.feed_forward(out)
        most = _largest(out)
        out = _clamped(out, most)
        return out, bias, cross_bias


def _largest(x: Tensor) -> Tensor | None:
    """The number that half precision is kept within: less than the largest one where there is an infinity."""
    if x.dtype is not dtypes.float16:
        return None
    size = empty(x.tape, x.shape, x.dtype, "abs")
    infinite = empty(x.tape, x.shape, dtypes.bool_, "eq")
    del size
    found = empty(x.tape, (), dtypes.bool_, "any")
    del infinite
    choices = [empty(x.tape, (), dtypes.float32, "scalar_tensor") for _ in range(2)]
    most = empty(x.tape, (), dtypes.float32, "where")
    del found, choices
    return most


def _clamped(x: Tensor, most: Tensor | None) -> Tensor:
    return x if most is None else clamp_between(x, empty(x.tape, (), dtypes.float32, "neg"), most)


class Stack:
    """Encoder or decoder."""

    def __init__(self, decodes: bool, words: Embedding, spec: T5Spec, build: Builder):
        name, layers = "encoder", spec.num_hidden_layers
        if decodes:
            name, layers = "decoder", spec.depth - layers
        self.decodes, self.words, self.attention, self.dropout = decodes, words, build.attention, spec.dropout_rate
        kinds = [True] + [not spec.shares_bias] * (layers - 1)
        self.blocks = build.layers(kinds, lambda biased: Block(decodes, biased, spec, build), name, f"{name}.", first=2, last=1)
        self.norm = LayerNorm(name + ".final_layer_norm", spec, build)

    def __call__(self, ids: Tensor, encoded: Tensor | None = None) -> Tensor:
        embeds = self.words(ids)
        batch, tokens = ids.shape
        mask = causal_mask(ids.tape, batch, tokens, embeds.dtype, self.attention, None) if self.decodes else None
        bias = cross_bias = None
        hidden = dropout(embeds, self.dropout)
        for block in self.blocks:
            hidden, bias, cross_bias = block(hidden, mask, bias, encoded, cross_bias)
        hidden = self.norm(hidden)
        return dropout(hidden, self.dropout)


class T5:
    """The body of the model."""

    def __init__(self, spec: T5Spec, build: Builder):
        refuse_quantization(build, spec.model_type)
        self.shared = build.embedding("shared", spec.vocab_size, spec.hidden_size)
        self.encoder = Stack(False, self.shared, spec, build)
        self.decoder = Stack(True, self.shared, spec, build)

    def encode(self, ids: Tensor) -> Tensor:
        return self.encoder(ids)

    def decode(self, targets: Tensor, encoded: Tensor) -> Tensor:
        return self.decoder(targets, encoded)


def _language_model(spec: T5Spec, build: Builder) -> Seq2SeqLM:
    body = T5(spec, build)
    lm_head = build.head(spec.hidden_size, spec.vocab_size, spec.tie_word_embeddings)
    return Seq2SeqLM(body, lm_head, encodes_first=True, scales=spec.scales)


HEADS: dict[str, Head] = {
    "seq2seq-lm": _language_model,
    "sequence-classification": lambda spec, build: Seq2SeqClassification(
        T5(spec, build), ClassificationHead(spec.hidden_size, spec.classifier_dropout, build), keeps_targets=True
    ),
}
