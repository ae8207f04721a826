"""ALBERT: BERT's blocks with one layer's parameters for all layers, and embeddings that are narrower than they.

Layers are never recomputed: transformers' classes have no gradient checkpointing. After transformers' modeling_albert.py (5.23).
"""

from __future__ import annotations

from typing import ClassVar

from estimator.families.abilities import Abilities
from estimator.families.attention import Attention
from estimator.families.bert import Embeddings
from estimator.families.build import Builder
from estimator.families.encoders import Classification, MaskedLM, PostNormSpec, refuse_quantization
from estimator.families.heads import Head
from estimator.families.modules import ACTIVATIONS, Linear
from estimator.families.spec import Activation, Probability, Size
from estimator.tape.pointwise import add, dropout, tanh
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, select, transpose

LAYER = "encoder.albert_layer_groups.0.albert_layers.0"


class AlbertSpec(PostNormSpec):
    can = Abilities()
    last_vllm = "none"
    in_sglang = "none"
    modelled = {
        "num_hidden_groups": (1,),
        "inner_group_num": (1,),
        "chunk_size_feed_forward": (0,),
        "position_embedding_type": ("absolute",),
        "tie_word_embeddings": (True,),
    }
    learned_positions = True
    recomputed = False
    positions_from_ids: ClassVar[bool] = False

    embedding_size: Size = 128
    type_vocab_size: Size = 2
    hidden_act: Activation = "gelu_new"
    hidden_dropout_prob: Probability = 0.0
    attention_probs_dropout_prob: Probability = 0.0
    classifier_dropout_prob: Probability = 0.1


SPECS = {"albert": AlbertSpec}


class SelfAttention:
    """Attention, its output layer and the norm of what that gives and the input, in one module."""

    def __init__(self, spec: AlbertSpec, build: Builder):
        size, name = spec.hidden_size, f"{LAYER}.attention"
        self.heads, self.dropout = spec.num_attention_heads, spec.hidden_dropout_prob
        self.query, self.key, self.value, self.dense = [
            build.linear(f"{name}.{part}", size, size, bias=True) for part in ("query", "key", "value", "dense")
        ]
        self.norm = build.layer_norm(f"{name}.LayerNorm", size)
        self.attend = Attention(build.attention, False, spec.attention_probs_dropout_prob, cast_back=False, causal=False)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, tokens, size = hidden.shape
        heads = (batch, tokens, self.heads, size // self.heads)
        q = transpose(reshape(self.query(hidden), heads), 1, 2)
        k = transpose(reshape(self.key(hidden), heads), 1, 2)
        v = transpose(reshape(self.value(hidden), heads), 1, 2)
        out, weights = self.attend(q, k, v, None)
        out = reshape(out, (batch, tokens, size))
        out = self.dense(out)
        out = dropout(out, self.dropout)
        out = self.norm(add(hidden, out))
        return out, weights


class Layer:
    def __init__(self, spec: AlbertSpec, build: Builder):
        size, wide = spec.hidden_size, spec.intermediate_size
        self.norm = build.layer_norm(f"{LAYER}.full_layer_layer_norm", size)
        self.attention = SelfAttention(spec, build)
        self.ffn = build.linear(f"{LAYER}.ffn", size, wide, bias=True)
        self.ffn_output = build.linear(f"{LAYER}.ffn_output", wide, size, bias=True)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, hidden: Tensor) -> Tensor:
        attended, _ = self.attention(hidden)
        fed = self._feed(attended)
        return self.norm(add(fed, attended))

    def _feed(self, attended: Tensor) -> Tensor:
        out = self.ffn(attended)
        out = self.act(out)
        return self.ffn_output(out)


class Albert:
    """The body of the model. Its layers are one, which lies outside of the stack that runs it again and again."""

    def __init__(self, spec: AlbertSpec, build: Builder):
        refuse_quantization(build, spec.model_type)
        self.embeddings = Embeddings(spec, build, spec.embedding_size)
        self.widen = build.linear("encoder.embedding_hidden_mapping_in", spec.embedding_size, spec.hidden_size, bias=True)
        shared = Layer(spec, build)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: lambda hidden: shared(hidden), "layer", last=1)

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embeddings(ids)
        hidden = self.widen(embedded)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Predictions:
    """A layer back to the embeddings' width, a norm, and an output layer tied to them but for its bias (`AlbertMLMHead`)."""

    def __init__(self, spec: AlbertSpec, build: Builder):
        words = build.parameters[0].tensor
        self.decoder = Linear(words, build.parameter("predictions.bias", (spec.vocab_size,)))
        self.norm = build.layer_norm("predictions.LayerNorm", spec.embedding_size)
        self.dense = build.linear("predictions.dense", spec.hidden_size, spec.embedding_size, bias=True)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self.dense(hidden)
        out = self.act(out)
        out = self.norm(out)
        out = self.decoder(out)
        return out


class Classifier:
    """Scores of what the pooler makes of the first token."""

    def __init__(self, spec: AlbertSpec, build: Builder):
        self.pooler = build.linear("pooler", spec.hidden_size, spec.hidden_size, bias=True)
        self.dropout = spec.classifier_dropout_prob
        self.classifier = build.score(spec.hidden_size, bias=True, name="classifier")

    def __call__(self, hidden: Tensor) -> Tensor:
        pooled = tanh(self.pooler(select(hidden, 1)))
        out = dropout(pooled, self.dropout)
        return self.classifier(out)


HEADS: dict[str, Head] = {
    "masked-lm": lambda spec, build: MaskedLM(Albert(spec, build), Predictions(spec, build)),
    "sequence-classification": lambda spec, build: Classification(Albert(spec, build), Classifier(spec, build)),
}
