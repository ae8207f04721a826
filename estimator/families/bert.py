"""BERT, RoBERTa and their like: learned positions and token types, attention in both directions, norms after each block, dropout.

RoBERTa, and CamemBERT, which is one, find positions from the ids that are no padding, and have heads of their own; CamemBERT and
XLM-RoBERTa make them before their body. ERNIE is BERT with a type of task, Data2Vec's encoder of texts RoBERTa.
After transformers' modeling_bert.py, modeling_roberta.py, modeling_xlm_roberta.py, modeling_camembert.py, modeling_ernie.py and
modeling_data2vec_text.py (5.23).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

from estimator.families.abilities import Abilities
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.encoders import (
    Classification,
    Intermediate,
    MaskedLM,
    PostNorm,
    PostNormSpec,
    Predictions,
    refuse_quantization,
)
from estimator.families.heads import Head
from estimator.families.modules import Module
from estimator.families.spec import Probability, Size
from estimator.tape import dtypes
from estimator.tape.pointwise import add, add_, add_scalar, dropout, mul, tanh, to
from estimator.tape.tensor import Tensor, alias, empty
from estimator.tape.views import expand, reshape, select, transpose


class BertSpec(PostNormSpec):
    can = Abilities(bottleneck="post-norm", gguf=True, graph="bert-1")
    modelled = PostNormSpec.modelled | {
        "add_cross_attention": (False,),
        "chunk_size_feed_forward": (0,),
        "position_embedding_type": ("absolute",),
    }
    learned_positions = True
    embeds = True
    pooled_in_sglang = True
    positions_from_ids: ClassVar[bool] = False
    head_first: ClassVar[bool] = False
    """Whether the head's parameters come before the body's."""

    type_vocab_size: Size = 2
    classifier_dropout: Probability | None = None

    @property
    def tasks(self) -> int:
        """Types of tasks that embeddings tell apart."""
        return 0


class ErnieSpec(BertSpec):
    embeds = pooled_in_sglang = False
    last_vllm = "none"
    in_sglang = "none"

    use_task_id: bool = False
    task_type_vocab_size: Size = 3

    @property
    def tasks(self) -> int:
        return self.task_type_vocab_size if self.use_task_id else 0


class RobertaSpec(BertSpec):
    can = Abilities(bottleneck="post-norm", gguf=True, graph="bert-1")
    pooled_in_sglang = False
    positions_from_ids = True

    pad_token_id: int = 1

    @property
    def longest_sequence(self) -> int:
        """Positions begin after the padding's."""
        return self.max_position_embeddings - self.pad_token_id - 1


class XLMRobertaSpec(RobertaSpec):
    can = Abilities(bottleneck="post-norm", gguf=True, graph="bert-1")
    pooled_in_sglang = True
    head_first = True


class CamembertSpec(RobertaSpec):
    can = Abilities()
    embeds = False
    last_vllm = "none"
    head_first = True


class Data2VecTextSpec(RobertaSpec):
    embeds = False
    last_vllm = "none"
    in_sglang = "none"


SPECS = {
    "bert": BertSpec,
    "ernie": ErnieSpec,
    "roberta": RobertaSpec,
    "xlm-roberta": XLMRobertaSpec,
    "camembert": CamembertSpec,
    "data2vec-text": Data2VecTextSpec,
}


class Embeddings:
    """Of words, places and types. `tasks`: types of tasks, if they are told apart, too. `normed`: whether a norm follows."""

    def __init__(self, spec: Any, build: Builder, size: int, tasks: int = 0, normed: bool = True):
        self.positions_from_ids = spec.positions_from_ids
        positions = spec.max_position_embeddings
        self.word = build.embedding("embeddings.word_embeddings", spec.vocab_size, size)
        if not self.positions_from_ids:
            self.position = build.embedding("embeddings.position_embeddings", positions, size)
        self.token_type = build.embedding("embeddings.token_type_embeddings", spec.type_vocab_size, size)
        self.norm = build.layer_norm("embeddings.LayerNorm", size) if normed else None
        if self.positions_from_ids:
            self.position = build.embedding("embeddings.position_embeddings", positions, size)
        self.task_type = build.embedding("embeddings.task_type_embeddings", tasks, size) if tasks else None
        self.dropout = spec.hidden_dropout_prob
        self.gathers = build.kernels.release == "5"
        self.position_ids, self.token_type_ids = (
            build.buffer(name, (1, positions), dtypes.int64) for name in ("position_ids", "token_type_ids")
        )

    def __call__(self, ids: Tensor) -> Tensor:
        positions = places_from_ids(ids) if self.positions_from_ids else alias(self.position_ids, (1, ids.shape[1]))
        types = empty(ids.tape, positions.shape, dtypes.int64, "gather") if self.gathers else self._types(ids.shape[1])
        types = expand(types, ids.shape)
        embeds = self.word(ids)
        token_types = self.token_type(types)
        out = add(embeds, token_types)
        places = self.position(positions)
        out = add(out, places)
        if self.task_type is not None:
            kinds = empty(ids.tape, ids.shape, dtypes.int64, "zeros")
            task_types = self.task_type(kinds)
            out = add_(out, task_types)
        if self.norm is not None:
            out = self.norm(out)
        return dropout(out, self.dropout)

    def _types(self, tokens: int) -> Tensor:
        """The types of a sequence's tokens, as transformers 4 reads them: where they lie."""
        return alias(self.token_type_ids, (1, tokens))


def places_from_ids(ids: Tensor) -> Tensor:
    """How many tokens that are no padding come before (`create_position_ids_from_input_ids`)."""
    compared = empty(ids.tape, ids.shape, dtypes.bool_, "ne")
    mask = to(compared, dtypes.int32)
    del compared
    counted = mul(add_scalar(to(empty(ids.tape, ids.shape, dtypes.int64, "cumsum"), dtypes.int32)), mask)
    return add_scalar(to(counted, dtypes.int64))


class SelfAttention:
    def __init__(self, spec: BertSpec, build: Builder):
        size = spec.hidden_size
        self.heads, self.matched = spec.num_attention_heads, build.kernels.matched
        self.query = build.linear("attention.self.query", size, size, bias=True)
        self.key = build.linear("attention.self.key", size, size, bias=True)
        self.value = build.linear("attention.self.value", size, size, bias=True)
        self.attend = Attention(build.attention, False, spec.attention_probs_dropout_prob, cast_back=False, causal=False)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, tokens, size = hidden.shape
        heads = (batch, tokens, self.heads, size // self.heads)
        q = transpose(reshape(self.query(hidden), heads), 1, 2)
        k = transpose(reshape(self.key(hidden), heads), 1, 2)
        v = transpose(reshape(self.value(hidden), heads), 1, 2)
        q, k, v = self.matched(q, k, v)
        out, weights = self.attend(q, k, v, None)
        return reshape(out, (batch, tokens, size)), weights


class Layer:
    def __init__(self, spec: BertSpec, build: Builder):
        self.attention = SelfAttention(spec, build)
        self.attention_output = PostNorm("attention.output", spec.hidden_size, spec, build)
        self.intermediate = Intermediate(spec, build)
        self.output = PostNorm("output", spec.intermediate_size, spec, build)

    def __call__(self, hidden: Tensor) -> Tensor:
        attended, _ = self._attend(hidden)
        between = self.intermediate(attended)
        return self.output(between, attended)

    def _attend(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        out, weights = self.attention(hidden)
        out = self.attention_output(out, hidden)
        return out, weights


class Bert:
    """The body of the model."""

    def __init__(self, spec: BertSpec, build: Builder):
        refuse_quantization(build, spec.model_type)
        self.release = build.kernels.release
        self.embeddings = Embeddings(spec, build, spec.hidden_size, spec.tasks)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build), "layer", last=1)

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embeddings(ids)
        hidden = embedded
        _held = None if self.release == "5" else _ones(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def _ones(ids: Tensor) -> Tensor:
    """The mask of a batch without padding, as transformers 4 makes it."""
    mask = empty(ids.tape, ids.shape, dtypes.float32, "ones")
    compared = empty(ids.tape, ids.shape, dtypes.bool_, "eq")
    del compared
    return mask


def _masked_lm(spec: BertSpec, build: Builder) -> MaskedLM:
    body = Bert(spec, build)
    if spec.positions_from_ids:
        with build.ahead() if spec.head_first else nullcontext():
            return MaskedLM(body, Predictions(("lm_head.dense", "lm_head.layer_norm"), "gelu", spec, build))
    names = "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"
    return MaskedLM(body, Predictions(names, spec.hidden_act, spec, build))


class Classifier:
    """BERT's classifier, behind the pooler of its body."""

    def __init__(self, spec: BertSpec, build: Builder):
        self.pooler = build.linear("pooler.dense", spec.hidden_size, spec.hidden_size, bias=True)
        self.dropout = spec.hidden_dropout_prob if spec.classifier_dropout is None else spec.classifier_dropout
        self.classifier = build.score(spec.hidden_size, bias=True, name="classifier")

    def __call__(self, hidden: Tensor) -> Tensor:
        pooled = self.pooler(select(hidden, 1))
        pooled = tanh(pooled)
        out = dropout(pooled, self.dropout)
        return self.classifier(out)


class RobertaClassifier:
    """RoBERTa's classifier. PEFT trains a copy of both of its layers."""

    def __init__(self, spec: Any, build: Builder, act: Module = tanh):
        self.act = act
        self.dense = build.score(spec.hidden_size, bias=True, name="classifier.dense", outputs=spec.hidden_size)
        self.dropout = spec.hidden_dropout_prob if spec.classifier_dropout is None else spec.classifier_dropout
        self.out_proj = build.score(spec.hidden_size, bias=True, name="classifier.out_proj")

    def __call__(self, hidden: Tensor) -> Tensor:
        out = select(hidden, 1)
        out = dropout(out, self.dropout)
        out = self.dense(out)
        out = self.act(out)
        out = dropout(out, self.dropout)
        return self.out_proj(out)


def _classification(spec: BertSpec, build: Builder) -> Classification:
    body = Bert(spec, build)
    with build.ahead() if spec.head_first else nullcontext():
        return Classification(body, (RobertaClassifier if spec.positions_from_ids else Classifier)(spec, build))


HEADS: dict[str, Head] = {
    "masked-lm": _masked_lm,
    "sequence-classification": _classification,
}
