"""What stands on a model's body: its output layer, its loss, and the batch that both are computed from.

After transformers' `...For...` classes and loss/loss_utils.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from estimator.families.build import Builder
from estimator.families.chunked import chunked_loss, chunks
from estimator.families.model_output import Held
from estimator.families.modules import Linear
from estimator.families.spec import DecoderSpec
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.loss import cross_entropy
from estimator.tape.pointwise import to
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, binary, empty
from estimator.tape.views import index


@dataclass(frozen=True, slots=True)
class Batch:
    """What one forward pass gets: sequences of so many tokens (for an encoder–decoder also on the other side), or images."""

    sequences: int
    tokens: int
    target_tokens: int


class Model(Protocol):
    """A body with its head."""

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """The tensors of a batch; what is not a number of something is in the model's type."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        """The loss, and what else the model's output holds."""


Head = Callable[[Any, Builder], Model]


class Body(Protocol):
    """A decoder without its output layer."""

    def forward(self, ids: Tensor) -> Tensor:
        """Last hidden states, [batch, tokens, hidden], of token ids [batch, tokens]."""


class CausalLM:
    """A decoder that predicts the next token. `cuts`: although its logits are changed, Apple's kernels make the same loss."""

    cuts = False

    def __init__(self, body: Body, spec: DecoderSpec, build: Builder, bias: bool = False):
        self.body = body
        self.loss = build.kernels.loss
        self.lm_head = build.head(spec.output_size, spec.vocab_size, spec.tie_word_embeddings, bias)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Token ids, which are the labels too."""
        return (empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids"),)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        (ids,) = inputs
        if self.loss.in_chunks:
            parts = chunks(self.body.forward(ids))
            with ids.tape.losing():
                logits_of_parts = [self.lm_head(part) for part in parts]
                del parts
                return chunked_loss(logits_of_parts, ids), ()
        hidden = self.body.forward(ids)
        with ids.tape.losing():
            if self.loss.fused is not None:
                return self.loss.fused(self.fused_from(hidden), self.lm_head.weight, ids), ()
            logits = self.logits(hidden)
            if self.loss.upcasts_first:
                logits = to(logits, dtypes.float32)
            return self.loss(logits, ids), logits

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary."""
        return self.lm_head(hidden)

    def fused_from(self, hidden: Tensor) -> Tensor:
        """What a loss that is fused with the output layer gets in place of hidden states."""
        return hidden


def takes_chunks(model: Model) -> bool:
    """Whether the loss can be computed in chunks: the model's logits are its output layer's, and its loss is that of all."""
    return isinstance(model, CausalLM) and type(model).logits is CausalLM.logits and type(model).forward is CausalLM.forward


def takes_shifts(model: Model) -> bool:
    """Whether a trainer's own loss can stand in the place of the model's: it is computed of the logits of one output layer."""
    return isinstance(model, CausalLM) and type(model).forward is CausalLM.forward


class FusedHead:
    """A model of several parts whose loss is fused with its output layer where the job says so."""

    lm_head: Linear


def takes_cut(model: Model) -> bool:
    """Whether Apple's kernels can compute the loss: of one output layer without a bias, whose logits it can do without."""
    if isinstance(model, CausalLM):
        plain = type(model).forward is CausalLM.forward and (type(model).logits is CausalLM.logits or model.cuts)
        return plain and model.lm_head.bias is None
    return isinstance(model, FusedHead) and model.lm_head.bias is None


class SequenceClassification:
    """A decoder that classifies a sequence by its last token (`GenericForSequenceClassification`)."""

    def __init__(self, body: Body, spec: DecoderSpec, build: Builder):
        self.body = body
        self.score = build.score(spec.output_size)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        ids = empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids")
        return ids, empty(tape, (batch.sequences,), dtypes.int64, "labels")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids, labels = inputs
        pooled, *held = self.pooled(ids)
        with ids.tape.losing():
            loss = cross_entropy(pooled, labels)
        del held
        return loss, pooled

    def pooled(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Scores of each sequence, [sequences, labels]; and what else forward holds to its end."""
        hidden = self.body.forward(ids)
        with ids.tape.losing():
            logits = self.score(hidden)
            last, *held = _last_tokens(ids)
            each = empty(ids.tape, last.shape, dtypes.int64, "arange")
            pooled = index(logits, (each, last), (*last.shape, logits.shape[-1]))
        return pooled, hidden, logits, last, *held


def language_model(body: Callable[[Any, Builder], Body]) -> dict[str, Head]:
    """The head of a decoder of which transformers has no classifier."""
    return {"causal-lm": lambda spec, build: CausalLM(body(spec, build), spec, build)}


def decoder_heads(body: Callable[[Any, Builder], Body]) -> dict[str, Head]:
    """The heads of a decoder that has nothing special about its own."""
    return language_model(body) | {
        "sequence-classification": lambda spec, build: SequenceClassification(body(spec, build), spec, build),
    }


def _last_tokens(ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The place of each sequence's last token that is no padding; and what it was found with, which forward holds to its end."""
    tape = ids.tape
    compared = empty(tape, ids.shape, dtypes.bool_, "ne")
    mask = empty(tape, ids.shape, dtypes.int32, "_to_copy")
    del compared
    places = empty(tape, ids.shape[-1:], dtypes.int32, "arange")
    product = binary("mul", places, mask)
    last = empty(tape, ids.shape[:-1], dtypes.int64, "argmax")
    del product
    return last, mask, places
