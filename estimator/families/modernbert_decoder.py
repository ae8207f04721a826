"""ModernBERT's decoder (Ettin): ModernBERT's layers, which look back only, and its head before the output layer.

After transformers' modeling_modernbert_decoder.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer
from estimator.families.decoder import Decoder, Rotary, Table
from estimator.families.encoders import refuse_quantization
from estimator.families.heads import CausalLM
from estimator.families.modernbert import MLP, PredictionHead, rotate_in_float32
from estimator.families.spec import Activation, FullHeadsSpec, Probability, Size, called
from estimator.families.windows import LayerType, WindowedSpec
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, dropout
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, reshape, transpose


class ModernBertDecoderSpec(FullHeadsSpec, WindowedSpec):
    """Half of `local_attention` are tokens that a layer with a window looks back."""

    modelled = {"rope_scaling": (None,)}
    default_period, seeing_all = 3, 0

    max_position_embeddings: Size | None = 8192
    hidden_act: Activation = called("hidden_activation", "gelu")
    norm_bias: bool = False
    attention_bias: bool = False
    embedding_dropout: Probability = 0.0
    mlp_bias: bool = False
    mlp_dropout: Probability = 0.0
    decoder_bias: bool = True
    classifier_bias: bool = False
    classifier_activation: Activation = "gelu"
    local_attention: Size = 128
    global_attn_every_n_layers: Size = 3
    sliding_window: Size = 64
    tie_word_embeddings: bool = True

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, given: Any) -> Any:
        """The window follows from `local_attention`."""
        if not isinstance(given, Mapping):
            return given
        near = given.get("local_attention", 128)
        return {**given, "sliding_window": near // 2} if isinstance(near, int) else given

    @property
    def kinds(self) -> tuple[LayerType, ...]:
        return self.layer_types or self.types(self.num_hidden_layers, self.global_attn_every_n_layers)

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        """None: serving it is not modelled yet."""
        return ()

    @property
    def cached_per_token(self) -> int | None:
        return None


SPECS = {"modernbert-decoder": ModernBertDecoderSpec}


class SelfAttention:
    def __init__(self, spec: ModernBertDecoderSpec, build: Builder):
        size = spec.hidden_size
        self.head_dim, self.dropout = spec.head_dim, spec.attention_dropout
        self.q_proj = build.linear("attn.q_proj", size, size, spec.attention_bias)
        self.k_proj = build.linear("attn.k_proj", size, size, spec.attention_bias)
        self.v_proj = build.linear("attn.v_proj", size, size, spec.attention_bias)
        self.Wo = build.linear("attn.Wo", size, size, spec.attention_bias)
        self.attend = Attention(build.attention, dropout=spec.attention_dropout)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, size = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = transpose(reshape(self.q_proj(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_proj(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        q, k = rotate_in_float32(q, k, cos, sin)
        out, weights = self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (batch, tokens, size)))
        out = dropout(self.Wo(out), self.dropout)
        return out, weights


class DecoderLayer:
    """The first layer has no norm before its attention. What attention gave is held until the layer is done."""

    def __init__(self, first: bool, spec: ModernBertDecoderSpec, build: Builder):
        self.attn_norm = None if first else build.layer_norm("attn_norm", spec.hidden_size, spec.norm_bias)
        self.attn = SelfAttention(spec, build)
        self.mlp_norm = build.layer_norm("mlp_norm", spec.hidden_size, spec.norm_bias)
        self.mlp = MLP(spec, build)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, _: Tensor | None = None) -> Tensor:
        residual = hidden
        hidden = hidden if self.attn_norm is None else self.attn_norm(hidden)
        attended = self.attn(hidden, cos, sin, mask)
        hidden = attended[0]
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.mlp_norm(hidden)
        fed = self.mlp(hidden)
        hidden = add(residual, fed)
        del attended
        return hidden


class Tables(Rotary):
    """Those of each sequence by itself, though all are alike."""

    def tables(self, ids: Tensor, dtype: DType) -> dict[LayerType, Table]:
        shape = (*ids.shape, self.size)
        return {kind: tuple([empty(ids.tape, shape, dtype, name) for name in ("cos", "sin")]) for kind in self.kinds}


class Body(Decoder):
    """`ModernBertDecoderModel`."""

    def __init__(self, spec: ModernBertDecoderSpec, build: Builder):
        refuse_quantization(build, spec.model_type)
        self.dropout = spec.embedding_dropout
        kinds = [(i == 0, kind) for i, kind in enumerate(spec.kinds)]
        super().__init__(
            spec,
            build,
            lambda kind: DecoderLayer(kind[0], spec, build),
            kinds,
            rotary=Tables(spec.head_dim, kinds=spec.kinds),
            norm=lambda name, size: build.layer_norm(name, size, spec.norm_bias),
            last="final_norm",
            embedding="embeddings.tok_embeddings",
            embedded=self._embedded,
            sees=lambda kind: kind[1],
        )
        with build.ahead("attn.q_proj.weight"):
            self.embedding_norm = build.layer_norm("embeddings.norm", spec.hidden_size, spec.norm_bias)

    def _embedded(self, embeds: Tensor) -> Tensor:
        return dropout(self.embedding_norm(embeds), self.dropout)


class PredictedLM(CausalLM):
    """A head, and an output layer after it (`ModernBertDecoderForCausalLM`)."""

    def __init__(self, spec: ModernBertDecoderSpec, build: Builder):
        self.body = Body(spec, build)
        self.loss = build.kernels.loss
        self.head = PredictionHead(spec, build, "lm_head")
        size, words = spec.hidden_size, spec.vocab_size
        self.lm_head = build.head(size, words, spec.tie_word_embeddings, spec.decoder_bias, name="decoder")

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(self.head(hidden))


HEADS = {"causal-lm": PredictedLM}
