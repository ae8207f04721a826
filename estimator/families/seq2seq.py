"""What encoder–decoders share: the decoder's input, the loss on their targets, and classification by the last token.

After transformers' modeling_bart.py and modeling_t5.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from estimator.families.build import Builder
from estimator.families.heads import Batch
from estimator.families.model_output import Held
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.loss import cross_entropy
from estimator.tape.pointwise import dropout, mul_scalar, tanh
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import index, reshape, select


class Body(Protocol):
    """An encoder–decoder without its output layer."""

    def encode(self, ids: Tensor) -> Tensor:
        """The encoder's last hidden states."""

    def decode(self, targets: Tensor, encoded: Tensor) -> Tensor:
        """The decoder's last hidden states; `targets` are its input ids."""


class Seq2SeqLM:
    """An encoder–decoder that writes a target for each sequence: `predict` makes scores of the decoder's hidden states.

    `encodes_first`: whether the labels are shifted only after the encoder has run. `scales`: whether hidden states are
    multiplied by a number before.
    """

    def __init__(self, body: Body, predict: Callable[[Tensor], Tensor], encodes_first: bool = False, scales: bool = False):
        self.body, self.predict, self.encodes_first, self.scales = body, predict, encodes_first, scales

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        ids = empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids")
        return ids, empty(tape, (batch.sequences, batch.target_tokens), dtypes.int64, "labels")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        """The output holds the encoder's hidden states, too."""
        ids, labels = inputs
        if self.encodes_first:
            encoded = self.body.encode(ids)
            targets = shifted_right(labels)
        else:
            targets = shifted_right(labels)
            encoded = self.body.encode(ids)
        hidden = self.body.decode(targets, encoded)
        with ids.tape.losing():
            out = mul_scalar(hidden) if self.scales else hidden
            logits = self.predict(out)
            loss = cross_entropy(reshape(logits, (-1, logits.shape[-1])), reshape(labels, (-1,)))
        return loss, (logits, encoded)


class Seq2SeqClassification:
    """An encoder–decoder that classifies a sequence by its last token, which the decoder reads too.

    `keeps_targets`: whether the head, not the body, makes the decoder's input, and holds it to the end.
    """

    def __init__(self, body: Body, classify: Callable[[Tensor], Tensor], keeps_targets: bool = False):
        self.body, self.classify, self.keeps_targets = body, classify, keeps_targets

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        ids = empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids")
        return ids, empty(tape, (batch.sequences,), dtypes.int64, "labels")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids, labels = inputs
        targets = shifted_right(ids)
        encoded = self.body.encode(ids)
        hidden = self.body.decode(targets, encoded)
        if not self.keeps_targets:
            del targets
        with ids.tape.losing():
            ends = empty(ids.tape, ids.shape, dtypes.bool_, "eq")
            batch, _, size = hidden.shape
            last = index(hidden, (ends,), (batch, size))
            logits = self.classify(select(reshape(last, (batch, 1, size)), 1))
            loss = cross_entropy(logits, labels)
        return loss, (logits, encoded)


class ClassificationHead:
    """Two layers with dropout before each (`BartClassificationHead`, `T5ClassificationHead`)."""

    def __init__(self, size: int, dropout_p: float, build: Builder):
        self.dense = build.linear("classification_head.dense", size, size, bias=True)
        self.out_proj = build.linear("classification_head.out_proj", size, build.labels, bias=True)
        self.dropout = dropout_p

    def __call__(self, hidden: Tensor) -> Tensor:
        out = dropout(hidden, self.dropout)
        out = self.dense(out)
        out = tanh(out)
        out = dropout(out, self.dropout)
        return self.out_proj(out)


def shifted_right(labels: Tensor) -> Tensor:
    """Labels as the decoder reads them: one later, after a token that starts (`shift_tokens_right`)."""
    batch, tokens = labels.shape
    shifted = empty(labels.tape, labels.shape, dtypes.int64, "new_zeros")
    empty(labels.tape, (batch, tokens - 1), dtypes.int64, "clone")
    empty(labels.tape, labels.shape, dtypes.bool_, "eq")
    return shifted
