"""Marian and Pegasus: two stacks of BART's kind whose tables of positions are not trained.

Marian's norms stand after the blocks, Pegasus's before them and after each stack.

After transformers' modeling_marian.py and modeling_pegasus.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from estimator.families import bart, m2m_100
from estimator.families.attention import causal_mask
from estimator.families.bart import BartSpec, Predictions
from estimator.families.build import Builder
from estimator.families.heads import Head
from estimator.families.modules import Embedding
from estimator.families.seq2seq import Seq2SeqLM
from estimator.tape import dtypes
from estimator.tape.pointwise import add, add_scalar, dropout, mul_scalar
from estimator.tape.tensor import Tensor, empty


class MarianSpec(BartSpec):
    """Encoder and decoder share one embedding, which is the output layer's, too."""

    last_vllm, why_not_vllm = "none", ""
    modelled = BartSpec.modelled | {"share_encoder_decoder_embeddings": (True,)}
    before: ClassVar[bool] = False
    """Whether norms stand before the blocks, and after each stack."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        """Its published configurations call SiLU by its other name."""
        if isinstance(given, Mapping) and given.get("activation_function") == "swish":
            return {**given, "activation_function": "silu"}
        return given


class PegasusSpec(MarianSpec):
    before = True


SPECS = {"marian": MarianSpec, "pegasus": PegasusSpec}


class Stack:
    """Encoder or decoder: positions and layers, and a norm where those stand before the blocks."""

    def __init__(self, decodes: bool, words: Embedding, spec: MarianSpec, build: Builder):
        name, size = "decoder" if decodes else "encoder", spec.hidden_size
        layers = spec.decoder_layers if decodes else spec.num_hidden_layers
        layer: Callable[[bool, Any, Builder], Any] = m2m_100.Layer if spec.before else bart.Layer
        self.decodes, self.words, self.attention = decodes, words, build.attention
        table = build.parameter(f"{name}.embed_positions.weight", (spec.max_position_embeddings, size), trainable=False)
        self.positions = Embedding(table)
        self.layers = build.layers(layers, lambda _: layer(decodes, spec, build), name, f"{name}.", last=int(decodes))
        self.norm = build.layer_norm(name + ".layer_norm", size) if spec.before else None
        self.dropout = spec.dropout

    def __call__(self, ids: Tensor, encoded: Tensor | None = None) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = mul_scalar(self.words(ids))
        steps = empty(tape, (tokens,), dtypes.int64, "arange")
        if self.decodes:
            steps = add_scalar(steps)
            _ones = empty(
                tape, ids.shape, dtypes.float32, "ones"
            )  # in place of a mask, since none is given; they live to the end
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None) if self.decodes else None
        wanted, tape.grad_enabled = tape.grad_enabled, False
        places = self.positions(steps)
        tape.grad_enabled = wanted
        if not self.decodes or self.norm is None:
            del steps
        hidden = add(embeds, places)
        hidden = dropout(hidden, self.dropout)
        for layer in self.layers:
            hidden = layer(hidden, mask, encoded)
        return hidden if self.norm is None else self.norm(hidden)


class Marian(bart.Bart):
    """The body of the model."""

    stack = Stack


HEADS: dict[str, Head] = {"seq2seq-lm": lambda spec, build: Seq2SeqLM(Marian(spec, build), Predictions(spec, build))}
