"""mBART: BART with norms before the blocks and after each stack, as M2M100 has them.

After transformers' modeling_mbart.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.families import bart, m2m_100
from estimator.families.attention import causal_mask
from estimator.families.bart import BartSpec, Predictions, scaled
from estimator.families.build import Builder
from estimator.families.heads import Head
from estimator.families.modules import Embedding
from estimator.families.seq2seq import ClassificationHead, Seq2SeqClassification, Seq2SeqLM
from estimator.tape import dtypes
from estimator.tape.pointwise import add, add_scalar, dropout
from estimator.tape.tensor import Tensor, empty


class MBartSpec(BartSpec):
    last_vllm = "none"
    why_not_vllm = "of encoder-decoders its registry has those that hear or see"


SPECS = {"mbart": MBartSpec}


class Stack:
    """Encoder or decoder: positions, a norm, layers and another norm."""

    def __init__(self, decodes: bool, words: Embedding, spec: MBartSpec, build: Builder):
        name, size = "decoder" if decodes else "encoder", spec.hidden_size
        layers = spec.decoder_layers if decodes else spec.num_hidden_layers
        layer: Callable[[bool, Any, Builder], Any] = m2m_100.Layer
        self.decodes, self.words, self.attention, self.dropout = decodes, words, build.attention, spec.dropout
        self.positions = build.embedding(name + ".embed_positions", spec.max_position_embeddings + 2, size)
        self.layers = build.layers(layers, lambda _: layer(decodes, spec, build), name, f"{name}.", last=int(decodes))
        self.embedding_norm = build.layer_norm(name + ".layernorm_embedding", size)
        self.norm = build.layer_norm(name + ".layer_norm", size)

    def __call__(self, ids: Tensor, encoded: Tensor | None = None) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = scaled(self.words, ids)
        mask = None
        if self.decodes:
            steps = empty(tape, (1, tokens), dtypes.int64, "arange")
            _ones = empty(tape, ids.shape, dtypes.float32, "ones")  # in place of a mask, since none is given
            mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None)
            places = self.positions(add_scalar(steps))
            del steps
        else:
            places = self.positions(empty(tape, ids.shape, dtypes.int64, "add"))
        hidden = add(embeds, places)
        hidden = self.embedding_norm(hidden)
        hidden = dropout(hidden, self.dropout)
        for layer in self.layers:
            hidden = layer(hidden, mask, encoded)
        return self.norm(hidden)


class MBart(bart.Bart):
    """The body of the model."""

    stack = Stack


HEADS: dict[str, Head] = {
    "seq2seq-lm": lambda spec, build: Seq2SeqLM(MBart(spec, build), Predictions(spec, build)),
    "sequence-classification": lambda spec, build: Seq2SeqClassification(
        MBart(spec, build), ClassificationHead(spec.hidden_size, spec.classifier_dropout, build)
    ),
}
