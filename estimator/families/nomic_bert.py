"""NomicBERT: BERT with rotary positions, gated feed-forward layers, and no biases in its layers.

After transformers' modeling_nomic_bert.py (5.23).
"""

from __future__ import annotations

from typing import Any

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.encoders import Classification, MaskedLM, PostNormSpec, Predictions, refuse_quantization
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import Head
from estimator.families.modules import rotary_table, rotate
from estimator.families.rotary import frequencies
from estimator.families.spec import Activation, Probability, Size
from estimator.tape import dtypes
from estimator.tape.pointwise import add, dropout, tanh
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape, select, transpose


class NomicBertSpec(PostNormSpec):
    embeds = True

    max_position_embeddings: Size = 2048
    head_dim: Size
    hidden_act: Activation = "silu"
    hidden_dropout_prob: Probability = 0.0
    attention_probs_dropout_prob: Probability = 0.0
    type_vocab_size: Size = 2
    classifier_dropout: Probability | None = None

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"head_dim": hidden // heads}


SPECS = {"nomic_bert": NomicBertSpec}


class Embeddings:
    """Of words and token types; positions are rotations."""

    def __init__(self, spec: NomicBertSpec, build: Builder):
        self.word = build.embedding("embeddings.word_embeddings", spec.vocab_size, spec.hidden_size)
        self.token_type = build.embedding("embeddings.token_type_embeddings", spec.type_vocab_size, spec.hidden_size)
        self.norm = build.layer_norm("embeddings.LayerNorm", spec.hidden_size)
        self.dropout = spec.hidden_dropout_prob
        names, shape = ("position_ids", "token_type_ids"), (1, spec.max_position_embeddings)
        self.buffers = [build.buffer(name, shape, dtypes.int64) for name in names]

    def __call__(self, ids: Tensor) -> Tensor:
        out = self.word(ids)
        types = empty(ids.tape, ids.shape, dtypes.int64, "zeros")
        token_types = self.token_type(types)
        out = add(out, token_types)
        out = self.norm(out)
        return dropout(out, self.dropout)


class SelfAttention:
    def __init__(self, spec: NomicBertSpec, build: Builder):
        self.head_dim = spec.head_dim
        size = spec.num_attention_heads * spec.head_dim
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, size)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, size)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, size)
        self.o_proj = build.linear("self_attn.o_proj", size, spec.hidden_size)
        self.attend = Attention(build.attention, False, spec.attention_probs_dropout_prob, cast_back=False, causal=False)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = transpose(reshape(self.q_proj(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_proj(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        q, k = rotate(q, k, cos, sin)
        out, weights = self.attend(q, k, v, None)
        out = reshape(out, (batch, tokens, -1))
        return self.o_proj(out), weights


class Layer:
    """A norm after each block and the sum with its input. Checkpoints hold the positions that it is called with."""

    def __init__(self, spec: Any, build: Builder):
        self.attention_norm = build.layer_norm("post_attention_layernorm", spec.hidden_size)
        self.mlp = GatedMLP(spec, build)
        self.self_attn = SelfAttention(spec, build)
        self.mlp_norm = build.layer_norm("post_mlp_layernorm", spec.hidden_size)
        self.dropout = spec.hidden_dropout_prob

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
        residual = hidden
        attended, _ = self.self_attn(hidden, cos, sin)
        hidden = add(residual, dropout(attended, self.dropout))
        hidden = self.attention_norm(hidden)
        residual = hidden
        hidden = self.mlp(hidden)
        hidden = add(residual, dropout(hidden, self.dropout))
        return self.mlp_norm(hidden)


class NomicBert:
    """The body of the model. `pooled`: whether it has a pooler, which a classifier reads."""

    def __init__(self, spec: NomicBertSpec, build: Builder, pooled: bool = False):
        refuse_quantization(build, spec.model_type)
        self.size = spec.head_dim
        self.embeddings = Embeddings(spec, build)
        self.pooler = build.linear("pooler.dense", spec.hidden_size, spec.hidden_size, bias=True) if pooled else None
        self.buffers = frequencies(build, self.size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build), last=1)

    def forward(self, ids: Tensor) -> Tensor:
        tokens = ids.shape[1]
        positions = empty(ids.tape, (1, tokens), dtypes.int64, "arange")
        embedded = self.embeddings(ids)
        hidden = embedded
        cos, sin = rotary_table(ids.tape, tokens, self.size, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, positions)
        if self.pooler is not None:
            return tanh(self.pooler(select(hidden, 1)))
        del embedded
        return hidden


def _masked_lm(spec: NomicBertSpec, build: Builder) -> MaskedLM:
    body = NomicBert(spec, build)
    names = "cls.predictions.transform.dense", "cls.predictions.transform.layer_norm"
    return MaskedLM(body, Predictions(names, spec.hidden_act, spec, build))


def _classification(spec: NomicBertSpec, build: Builder) -> Classification:
    body = NomicBert(spec, build, pooled=True)
    drops = spec.hidden_dropout_prob if spec.classifier_dropout is None else spec.classifier_dropout
    classifier = build.score(spec.hidden_size, bias=True, name="classifier")
    return Classification(body, lambda pooled: classifier(dropout(pooled, drops)))


HEADS: dict[str, Head] = {"masked-lm": _masked_lm, "sequence-classification": _classification}
