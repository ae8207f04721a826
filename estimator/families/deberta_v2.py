"""DeBERTa v2 and v3: attention of contents to contents, contents to relative positions and positions to contents.

After transformers' modeling_deberta_v2.py (5.23), whose attention has one implementation, its own.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from estimator.families.build import Builder
from estimator.families.disentangled import DisentangledSelfAttention, relative_positions
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
from estimator.families.modules import ACTIVATIONS, Module
from estimator.families.spec import Activation, Probability, Size
from estimator.tape import dtypes
from estimator.tape.loss import cross_entropy
from estimator.tape.pointwise import add, dropout, mul, to
from estimator.tape.selection import gather
from estimator.tape.tensor import Tensor, alias, empty
from estimator.tape.views import expand, select, unsqueeze


class DebertaV2Spec(PostNormSpec):
    """`attention_head_size`, `embedding_size` and `pooler_hidden_size` may be given, but must be what follows from the width."""

    last_vllm = "none"
    why_not_vllm = "its registry has none, and its transformers backend takes no attention with relative positions"

    by_position = frozenset({0, 1})
    differentiated_once = True
    modelled = PostNormSpec.modelled | {"conv_kernel_size": (0,), "legacy": (True,), "z_steps": (0,)}
    attentions = ("eager",)

    relative_attention: Literal[True]
    pos_att_type: tuple[Literal["c2p", "p2c"], ...] = Field(min_length=1)
    position_buckets: int = -1
    max_relative_positions: int = -1
    share_att_key: bool = False
    norm_rel_ebd: Literal["none", "layer_norm"] = "none"
    position_biased_input: bool = True
    type_vocab_size: int = Field(0, ge=0, le=2**31)
    pooler_dropout: Probability = 0.0
    pooler_hidden_act: Activation = "gelu"
    cls_dropout: Probability | None = None
    attention_head_size: Size | None = None
    embedding_size: Size | None = None
    pooler_hidden_size: Size | None = None

    @field_validator("pos_att_type", mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        return [part.strip() for part in given.lower().split("|")] if isinstance(given, str) else given

    @model_validator(mode="after")
    def _follows(self) -> Self:
        width = {"attention_head_size": self.hidden_size // self.num_attention_heads}
        for name in ("attention_head_size", "embedding_size", "pooler_hidden_size"):
            expected = width.get(name, self.hidden_size)
            if getattr(self, name) not in (None, expected):
                raise ValueError(f"{name} {getattr(self, name)} is not modelled; {expected} is")
        return self

    @property
    def longest_sequence(self) -> int | None:
        """Relative positions share buckets when far; only absolute ones end."""
        return self.max_position_embeddings if self.position_biased_input else None

    @property
    def span(self) -> int:
        """Relative positions in each direction that have an embedding."""
        return self.position_buckets if self.position_buckets > 0 else self.farthest

    @property
    def farthest(self) -> int:
        return self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings

    def config(self) -> dict[str, Any]:
        return {name: value for name, value in super().config().items() if value is not None}


SPECS = {"deberta-v2": DebertaV2Spec}


class Embeddings:
    def __init__(self, spec: DebertaV2Spec, build: Builder):
        positions, types, size = spec.max_position_embeddings, spec.type_vocab_size, spec.hidden_size
        self.dropout = spec.hidden_dropout_prob
        self.word = build.embedding("embeddings.word_embeddings", spec.vocab_size, size)
        self.position = self.token_type = None
        if spec.position_biased_input:
            self.position = build.embedding("embeddings.position_embeddings", positions, size)
        if types:
            self.token_type = build.embedding("embeddings.token_type_embeddings", types, size)
        self.norm = build.layer_norm("embeddings.LayerNorm", size)
        self.position_ids = build.buffer("position_ids", (1, positions), dtypes.int64)

    def __call__(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        embeds = self.word(ids)
        if self.position is None:
            places = empty(ids.tape, embeds.shape, embeds.dtype, "zeros_like")
            out = embeds
        else:
            places = self.position(alias(self.position_ids, (1, ids.shape[1])))
            out = add(embeds, places)
        if self.token_type is not None:
            token_types = self.token_type(types)
            out = add(out, token_types)
        out = self.norm(out)
        shown = to(unsqueeze(mask, 2), out.dtype)
        out = mul(out, shown)
        return dropout(out, self.dropout)


class Layer:
    def __init__(self, spec: DebertaV2Spec, build: Builder):
        self.attention = DisentangledSelfAttention(spec, build)
        self.attention_output = PostNorm("attention.output", spec.hidden_size, spec, build)
        self.intermediate = Intermediate(spec, build)
        self.output = PostNorm("output", spec.intermediate_size, spec, build)

    def __call__(self, hidden: Tensor, mask: Tensor, relative: Tensor, table: Tensor) -> Tensor:
        attended = self._attend(hidden, mask, relative, table)
        between = self.intermediate(attended)
        return self.output(between, attended)

    def _attend(self, hidden: Tensor, mask: Tensor, relative: Tensor, table: Tensor) -> Tensor:
        out = self.attention(hidden, mask, relative, table)
        return self.attention_output(out, hidden)


class DebertaV2:
    """The body of the model. It gathers every layer's output, and lets them go at its end."""

    def __init__(self, spec: DebertaV2Spec, build: Builder):
        refuse_quantization(build, spec.model_type)
        self.spec = spec
        self.embeddings = Embeddings(spec, build)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build), "layer", "encoder.", last=1)
        self.table = build.parameter("encoder.rel_embeddings.weight", (2 * spec.span, spec.hidden_size))
        norm = spec.norm_rel_ebd == "layer_norm"
        self.norm: Module | None = build.layer_norm("encoder.LayerNorm", spec.hidden_size) if norm else None

    def forward(self, ids: Tensor) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        ones = empty(tape, (batch, tokens), dtypes.float32, "ones")
        types = empty(tape, (batch, tokens), dtypes.int64, "zeros")
        embedded = self.embeddings(ids, types, ones)
        mask = empty(tape, (batch, 1, tokens, tokens), dtypes.float32, "mul")
        relative = relative_positions(tape, tokens, bucketed=self.spec.position_buckets > 0)
        table = self.table if self.norm is None else self.norm(self.table)
        hidden, gathered = embedded, []
        for layer in self.layers:
            hidden = layer(hidden, mask, relative, table)
            gathered.append((tape.slot, hidden))
        del mask, relative, table
        for slot, _ in reversed(gathered):
            tape.enter(slot)
            gathered.pop()
        tape.enter(None)
        return hidden


def _masked_lm(spec: DebertaV2Spec, build: Builder) -> MaskedLM:
    body = DebertaV2(spec, build)
    names = "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"
    return MaskedLM(body, Predictions(names, spec.hidden_act, spec, build))


class Classifier:
    """Class scores of a sequence, from the last hidden state of its first token (`ContextPooler` and `classifier`)."""

    def __init__(self, spec: DebertaV2Spec, build: Builder):
        self.dense = build.linear("pooler.dense", spec.hidden_size, spec.hidden_size, bias=True)
        self.act, self.pooler_dropout = ACTIVATIONS[spec.pooler_hidden_act], spec.pooler_dropout
        self.dropout = spec.hidden_dropout_prob if spec.cls_dropout is None else spec.cls_dropout
        self.classifier = build.score(spec.hidden_size, bias=True, name="classifier")

    def __call__(self, hidden: Tensor) -> Tensor:
        first = dropout(select(hidden, 1), self.pooler_dropout)
        pooled = self.act(self.dense(first))
        pooled = dropout(pooled, self.dropout)
        return self.classifier(pooled)


class LabelledClassification(Classification):
    """Sequences without a label are left out of the loss, which copies the others' scores."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        labelled = empty(labels.tape, (*labels.shape, 1), dtypes.int64, "nonzero")
        scores = gather(logits, expand(labelled, logits.shape))
        known = empty(labels.tape, labels.shape, dtypes.int64, "gather")
        return cross_entropy(to(scores, dtypes.float32), known)


HEADS: dict[str, Head] = {
    "masked-lm": _masked_lm,
    "sequence-classification": lambda spec, build: LabelledClassification(DebertaV2(spec, build), Classifier(spec, build)),
}
