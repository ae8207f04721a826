"""DistilBERT: BERT without token types, with half of its layers and heads of its own.

After transformers' modeling_distilbert.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.encoders import Classification, MaskedLM, PostNormSpec, refuse_quantization
from estimator.families.heads import Head
from estimator.families.modules import ACTIVATIONS, Linear
from estimator.families.spec import Activation, Depth, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.pointwise import add, dropout, relu
from estimator.tape.tensor import Tensor, alias
from estimator.tape.views import reshape, select, transpose


class DistilBertSpec(PostNormSpec):
    can = Abilities(gguf=True, graph="bert-distilled")
    modelled = PostNormSpec.modelled | {"chunk_size_feed_forward": (0,)}
    learned_positions = True
    embeds = True

    hidden_size: Size = called("dim")
    num_hidden_layers: Depth = called("n_layers")
    num_attention_heads: Size = called("n_heads")
    intermediate_size: Size = called("hidden_dim")
    hidden_act: Activation = called("activation", "gelu")
    hidden_dropout_prob: Probability = called("dropout", 0.1)
    attention_probs_dropout_prob: Probability = called("attention_dropout", 0.1)
    seq_classif_dropout: Probability = 0.2


SPECS = {"distilbert": DistilBertSpec}


class Embeddings:
    def __init__(self, spec: DistilBertSpec, build: Builder):
        positions, size = spec.max_position_embeddings, spec.hidden_size
        self.word = build.embedding("embeddings.word_embeddings", spec.vocab_size, size)
        self.position = build.embedding("embeddings.position_embeddings", positions, size)
        self.norm = build.layer_norm("embeddings.LayerNorm", size)
        self.dropout = spec.hidden_dropout_prob
        self.position_ids = build.buffer("position_ids", (1, positions), dtypes.int64)

    def __call__(self, ids: Tensor) -> Tensor:
        embeds = self.word(ids)
        places = self.position(alias(self.position_ids, (1, ids.shape[1])))
        out = add(embeds, places)
        out = self.norm(out)
        return dropout(out, self.dropout)


class SelfAttention:
    def __init__(self, spec: DistilBertSpec, build: Builder):
        size = spec.hidden_size
        self.heads = spec.num_attention_heads
        self.q_lin = build.linear("attention.q_lin", size, size, bias=True)
        self.k_lin = build.linear("attention.k_lin", size, size, bias=True)
        self.v_lin = build.linear("attention.v_lin", size, size, bias=True)
        self.out_lin = build.linear("attention.out_lin", size, size, bias=True)
        self.attend = Attention(build.attention, False, spec.attention_probs_dropout_prob, cast_back=False, causal=False)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, tokens, size = hidden.shape
        heads = (batch, tokens, self.heads, size // self.heads)
        q = transpose(reshape(self.q_lin(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_lin(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_lin(hidden), heads), 1, 2)
        out, weights = self.attend(q, k, v, None)
        out = reshape(out, (batch, tokens, size))
        out = self.out_lin(out)
        return out, weights


class FeedForward:
    def __init__(self, spec: DistilBertSpec, build: Builder):
        self.lin1 = build.linear("ffn.lin1", spec.hidden_size, spec.intermediate_size, bias=True)
        self.lin2 = build.linear("ffn.lin2", spec.intermediate_size, spec.hidden_size, bias=True)
        self.act, self.dropout = ACTIVATIONS[spec.hidden_act], spec.hidden_dropout_prob

    def __call__(self, x: Tensor) -> Tensor:
        out = self.lin1(x)
        out = self.act(out)
        out = self.lin2(out)
        return dropout(out, self.dropout)


class Layer:
    def __init__(self, spec: DistilBertSpec, build: Builder):
        self.attention = SelfAttention(spec, build)
        self.sa_layer_norm = build.layer_norm("sa_layer_norm", spec.hidden_size)
        self.ffn = FeedForward(spec, build)
        self.output_layer_norm = build.layer_norm("output_layer_norm", spec.hidden_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        attended, _ = self.attention(hidden)
        attended = self.sa_layer_norm(add(attended, hidden))
        out = self.ffn(attended)
        return self.output_layer_norm(add(out, attended))


class DistilBert:
    """The body of the model."""

    def __init__(self, spec: DistilBertSpec, build: Builder):
        refuse_quantization(build, spec.model_type)
        self.embeddings = Embeddings(spec, build)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build), "layer", last=1)

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embeddings(ids)
        hidden = embedded
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Predictions:
    """The head of its masked language model; the output layer is tied to the input embedding but for its bias."""

    def __init__(self, spec: DistilBertSpec, build: Builder):
        words = build.parameters[0].tensor
        self.act = ACTIVATIONS[spec.hidden_act]
        self.transform = build.linear("vocab_transform", spec.hidden_size, spec.hidden_size, bias=True)
        self.norm = build.layer_norm("vocab_layer_norm", spec.hidden_size)
        self.projector = Linear(words, build.parameter("vocab_projector.bias", (spec.vocab_size,)))

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self.transform(hidden)
        out = self.act(out)
        out = self.norm(out)
        return self.projector(out)


class Classifier:
    """Class scores of a sequence, from the last hidden state of its first token. PEFT trains a copy of both layers, since both
    names end in "classifier"."""

    def __init__(self, spec: DistilBertSpec, build: Builder):
        self.pre_classifier = build.score(spec.hidden_size, bias=True, name="pre_classifier", outputs=spec.hidden_size)
        self.classifier = build.score(spec.hidden_size, bias=True, name="classifier")
        self.dropout = spec.seq_classif_dropout

    def __call__(self, hidden: Tensor) -> Tensor:
        out = select(hidden, 1)
        out = self.pre_classifier(out)
        out = relu(out)
        out = dropout(out, self.dropout)
        return self.classifier(out)


HEADS: dict[str, Head] = {
    "masked-lm": lambda spec, build: MaskedLM(DistilBert(spec, build), Predictions(spec, build)),
    "sequence-classification": lambda spec, build: Classification(DistilBert(spec, build), Classifier(spec, build)),
}
