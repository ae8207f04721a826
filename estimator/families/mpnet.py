"""MPNet: BERT's blocks with a bias of relative positions that all layers share, in attention of its own.

The bias is made for every sequence of the batch. Layers are never recomputed: transformers' classes have no gradient
checkpointing. After transformers' modeling_mpnet.py (5.23).
"""

from __future__ import annotations

from typing import ClassVar

from estimator.families.abilities import Abilities
from estimator.families.bert import RobertaClassifier, places_from_ids
from estimator.families.build import Builder
from estimator.families.encoders import Classification, Intermediate, MaskedLM, PostNormSpec, Predictions, refuse_quantization
from estimator.families.heads import Head
from estimator.families.relative import in_buckets
from estimator.families.spec import Size
from estimator.tape import dtypes
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, add_, div_scalar, dropout, softmax
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, expand, permute, reshape, transpose, unsqueeze

PADDING = 1
"""The id of padding, as its embeddings take it."""


class MPNetSpec(PostNormSpec):
    can = Abilities()
    last_vllm = "none"
    in_sglang = "none"
    attentions = ("eager",)
    recomputed = False
    learned_positions = True
    classifier_dropout: ClassVar[None] = None

    relative_attention_num_buckets: Size = 32

    @property
    def longest_sequence(self) -> int:
        """Positions begin after the padding's."""
        return self.max_position_embeddings - PADDING - 1


SPECS = {"mpnet": MPNetSpec}


class Embeddings:
    def __init__(self, spec: MPNetSpec, build: Builder):
        size = spec.hidden_size
        self.word = build.embedding("embeddings.word_embeddings", spec.vocab_size, size)
        self.position = build.embedding("embeddings.position_embeddings", spec.max_position_embeddings, size)
        self.norm = build.layer_norm("embeddings.LayerNorm", size)
        self.position_ids = build.buffer("position_ids", (1, spec.max_position_embeddings), dtypes.int64)
        self.dropout = spec.hidden_dropout_prob

    def __call__(self, ids: Tensor) -> Tensor:
        positions = places_from_ids(ids)
        words = self.word(ids)
        places = self.position(positions)
        out = add(words, places)
        out = self.norm(out)
        return dropout(out, self.dropout)


class SelfAttention:
    """Scores get the bias in place, and are held to the end."""

    def __init__(self, spec: MPNetSpec, build: Builder):
        size = spec.hidden_size
        self.heads, self.dropout = spec.num_attention_heads, spec.attention_probs_dropout_prob
        self.q, self.k, self.v, self.o = [build.linear(f"attention.attn.{name}", size, size, bias=True) for name in "qkvo"]

    def __call__(self, hidden: Tensor, bias: Tensor) -> Tensor:
        batch, tokens, size = hidden.shape
        heads = (batch, tokens, self.heads, size // self.heads)
        q = transpose(reshape(self.q(hidden), heads), 1, 2)
        k = transpose(reshape(self.k(hidden), heads), 1, 2)
        v = transpose(reshape(self.v(hidden), heads), 1, 2)
        scores = matmul(q, transpose(k, 2, 3))
        scores = div_scalar(scores)
        scores = add_(scores, bias)
        weights = softmax(scores)
        weights = dropout(weights, self.dropout)
        out = matmul(weights, v)
        out = contiguous(permute(out, (0, 2, 1, 3)))
        out = reshape(out, (batch, tokens, size))
        result = self.o(out)
        del scores, weights
        return result


class Layer:
    def __init__(self, spec: MPNetSpec, build: Builder):
        self.attention = SelfAttention(spec, build)
        self.attention_norm = build.layer_norm("attention.LayerNorm", spec.hidden_size)
        self.intermediate = Intermediate(spec, build)
        self.dense = build.linear("output.dense", spec.intermediate_size, spec.hidden_size, bias=True)
        self.norm = build.layer_norm("output.LayerNorm", spec.hidden_size)
        self.dropout = spec.hidden_dropout_prob

    def __call__(self, hidden: Tensor, bias: Tensor) -> Tensor:
        attended = self._attend(hidden, bias)
        between = self.intermediate(attended)
        return self._output(between, attended)

    def _attend(self, hidden: Tensor, bias: Tensor) -> Tensor:
        attended = self.attention(hidden, bias)
        return self.attention_norm(add(dropout(attended, self.dropout), hidden))

    def _output(self, hidden: Tensor, residual: Tensor) -> Tensor:
        out = self.dense(hidden)
        out = dropout(out, self.dropout)
        return self.norm(add(out, residual))


class MPNet:
    """The body of the model."""

    def __init__(self, spec: MPNetSpec, build: Builder):
        refuse_quantization(build, spec.model_type)
        self.embeddings = Embeddings(spec, build)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build), "layer", last=1)
        self.relative = build.embedding(
            "encoder.relative_attention_bias", spec.relative_attention_num_buckets, spec.num_attention_heads
        )

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embeddings(ids)
        hidden, bias = embedded, self._bias(ids)
        for layer in self.layers:
            hidden = layer(hidden, bias)
        return hidden

    def _bias(self, ids: Tensor) -> Tensor:
        """One number for each head and pair of positions, for each sequence (`compute_position_bias`)."""
        tape, (batch, tokens) = ids.tape, ids.shape
        places = [empty(tape, (tokens,), dtypes.int64, "arange") for _ in range(2)]
        relative = empty(tape, (tokens, tokens), dtypes.int64, "sub")
        values = self.relative(in_buckets(relative, False))
        values = unsqueeze(permute(values, (2, 0, 1)), 0)
        del places
        return contiguous(expand(values, (batch, *values.shape[1:])))


HEADS: dict[str, Head] = {
    "masked-lm": lambda spec, build: MaskedLM(
        MPNet(spec, build), Predictions(("lm_head.dense", "lm_head.layer_norm"), "gelu", spec, build)
    ),
    "sequence-classification": lambda spec, build: Classification(MPNet(spec, build), RobertaClassifier(spec, build)),
}
