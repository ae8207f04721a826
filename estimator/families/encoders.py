"""What encoders of the BERT kind share: their spec, their attention and post-norm blocks, and their heads.

After transformers' modeling_bert.py (5.23), which others copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

from pydantic import model_validator

from estimator.contract.errors import NotModelled
from estimator.families.build import Builder
from estimator.families.heads import Batch
from estimator.families.model_output import Held
from estimator.families.modules import ACTIVATIONS, Linear
from estimator.families.spec import Activation, ModelSpec, Probability, Size
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.loss import cross_entropy
from estimator.tape.pointwise import dropout, to
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape


class EncoderSpec(ModelSpec):
    """An encoder of attention and feed-forward layers. Its output layer is tied to its input embedding."""

    modelled = {"is_decoder": (False,), "tie_word_embeddings": (True,)}

    vocab_size: Size
    num_attention_heads: Size
    intermediate_size: Size
    max_position_embeddings: Size = 512
    hidden_act: Activation = "gelu"

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        return self


class PostNormSpec(EncoderSpec):
    """An encoder with dropout, and a norm after each block."""

    hidden_dropout_prob: Probability = 0.1
    attention_probs_dropout_prob: Probability = 0.1


class PostNorm:
    """A linear layer, dropout, and the norm of its sum with the block's input (`BertSelfOutput`, `BertOutput`)."""

    def __init__(self, name: str, inputs: int, spec: PostNormSpec, build: Builder):
        self.dense = build.linear(name + ".dense", inputs, spec.hidden_size, bias=True)
        place = "mh_adapter" if name.startswith("attention") else "output_adapter"
        self.join = build.join(place, spec.hidden_size, build.layer_norm(name + ".LayerNorm", spec.hidden_size))
        self.dropout = spec.hidden_dropout_prob

    def __call__(self, hidden: Tensor, residual: Tensor) -> Tensor:
        out = self.dense(hidden)
        out = dropout(out, self.dropout)
        return self.join(out, residual)


class Intermediate:
    """The first half of the feed-forward layer (`BertIntermediate`)."""

    def __init__(self, spec: EncoderSpec, build: Builder):
        self.dense = build.linear("intermediate.dense", spec.hidden_size, spec.intermediate_size, bias=True)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self.dense(hidden)
        return self.act(out)


class Predictions:
    """The head of a masked language model: a layer, a norm, and an output layer tied to the input embedding but for its bias.

    `BertLMPredictionHead`, `RobertaLMHead`, `LegacyDebertaV2LMPredictionHead`.
    """

    def __init__(self, names: tuple[str, str], activation: str, spec: EncoderSpec, build: Builder):
        dense, norm = names
        words = build.parameters[0].tensor
        self.decoder = Linear(words, build.parameter("bias", (spec.vocab_size,)))
        self.dense = build.linear(dense, spec.hidden_size, spec.hidden_size, bias=True)
        self.act = ACTIVATIONS[activation]
        self.norm = build.layer_norm(norm, spec.hidden_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self._transformed(hidden)
        return self.decoder(out)

    def _transformed(self, hidden: Tensor) -> Tensor:
        out = self.dense(hidden)
        out = self.act(out)
        return self.norm(out)


class Body(Protocol):
    """An encoder without its head."""

    def forward(self, ids: Tensor) -> Tensor:
        """Last hidden states, [batch, tokens, hidden], of token ids [batch, tokens]."""


class MaskedLM:
    """An encoder that predicts its tokens. `wide`: whether its loss is taken in float32 (`ForMaskedLMLoss`)."""

    def __init__(self, body: Body, predict: Callable[[Tensor], Tensor], wide: bool = False):
        self.body, self.predict, self.wide = body, predict, wide

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Token ids, which are the labels too."""
        return (empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids"),)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        (ids,) = inputs
        hidden = self.body.forward(ids)
        with ids.tape.losing():
            logits = self.predict(hidden)
            loss = self._loss(logits, ids)
        return loss, logits

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        scores = to(logits, dtypes.float32) if self.wide else logits
        return cross_entropy(reshape(scores, (-1, scores.shape[-1])), reshape(labels, (-1,)))


class Classification:
    """An encoder, or an encoder–decoder, that classifies sequences: `classify` makes scores of its hidden states."""

    def __init__(self, body: Body, classify: Callable[[Tensor], Tensor]):
        self.body, self.classify = body, classify

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        ids = empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids")
        return ids, empty(tape, (batch.sequences,), dtypes.int64, "labels")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids, labels = inputs
        hidden = self.body.forward(ids)
        with ids.tape.losing():
            logits = self.classify(hidden)
            loss = self.loss(logits, labels)
        return loss, logits

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels)


def refuse_quantization(build: Builder, model_type: str) -> None:
    """Which linear layers are left as they are depends on the class; it is not modelled for these."""
    if build.quantization is not None:
        raise NotModelled(f"quantized {model_type} models are not modelled yet", "training.quantization")
