"""Blenderbot: mBART without norms behind its embeddings, and learned positions from the first on.

After transformers' modeling_blenderbot.py (5.23).
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
from estimator.families.seq2seq import Seq2SeqLM
from estimator.families.spec import Size
from estimator.tape import dtypes
from estimator.tape.pointwise import add, add_scalar, dropout
from estimator.tape.tensor import Tensor, empty


class BlenderbotSpec(BartSpec):
    last_vllm = "none"
    why_not_vllm = "of encoder-decoders its registry has those that hear or see"

    max_position_embeddings: Size = 128


SPECS = {"blenderbot": BlenderbotSpec}


class Stack:
    """Encoder or decoder: positions, layers and a norm."""

    def __init__(self, decodes: bool, words: Embedding, spec: BlenderbotSpec, build: Builder):
        name, size = "decoder" if decodes else "encoder", spec.hidden_size
        layers = spec.decoder_layers if decodes else spec.num_hidden_layers
        layer: Callable[[bool, Any, Builder], Any] = m2m_100.Layer
        self.decodes, self.words, self.attention, self.dropout = decodes, words, build.attention, spec.dropout
        self.positions = build.embedding(name + ".embed_positions", spec.max_position_embeddings, size)
        self.layers = build.layers(layers, lambda _: layer(decodes, spec, build), name, f"{name}.", last=int(decodes))
        self.norm = build.layer_norm(name + ".layer_norm", size)

    def __call__(self, ids: Tensor, encoded: Tensor | None = None) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = scaled(self.words, ids)
        steps = empty(tape, (tokens,), dtypes.int64, "arange")
        mask = None
        if self.decodes:
            steps = add_scalar(steps)
            _ones = empty(tape, ids.shape, dtypes.float32, "ones")  # in place of a mask, since none is given
            mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None)
        places = self.positions(steps)
        del steps
        hidden = add(embeds, places)
        hidden = dropout(hidden, self.dropout)
        for layer in self.layers:
            hidden = layer(hidden, mask, encoded)
        return self.norm(hidden)


class Blenderbot(bart.Bart):
    """The body of the model."""

    stack = Stack


HEADS: dict[str, Head] = {"seq2seq-lm": lambda spec, build: Seq2SeqLM(Blenderbot(spec, build), Predictions(spec, build))}
