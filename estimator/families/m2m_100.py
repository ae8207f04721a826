"""M2M100 and NLLB: BART with norms before the blocks and after each stack, and positions that are computed, not learned.

After transformers' modeling_m2m_100.py (5.23). Models with LayerDrop, in which layers fall out at random, are counted by torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator.families import bart
from estimator.families.attention import causal_mask
from estimator.families.bart import Bart, BartSpec, scaled
from estimator.families.build import Builder
from estimator.families.heads import Head
from estimator.families.modules import Embedding
from estimator.families.seq2seq import Seq2SeqLM
from estimator.families.spec import Activation, Probability, called
from estimator.tape import dtypes
from estimator.tape.pointwise import add, clamp, dropout
from estimator.tape.tensor import Tensor, empty, unary


class M2M100Spec(BartSpec):
    learned_positions = False

    hidden_act: Activation = called("activation_function", "relu")
    attention_dropout: Probability = 0.1
    encoder_layerdrop: float = 0.0
    decoder_layerdrop: float = 0.0

    @classmethod
    def beyond(cls, given: Mapping[str, Any]) -> str:
        dropped = any(given.get(f"{stack}_layerdrop") for stack in ("encoder", "decoder"))
        return "layers that are left out at random (layerdrop) are not modelled for m2m_100" if dropped else cls.misfit(given)


SPECS = {"m2m_100": M2M100Spec}


class Layer(bart.Layer):
    """With each norm before its block."""

    def __call__(self, hidden: Tensor, mask: Tensor | None = None, encoded: Tensor | None = None) -> Tensor:
        residual = hidden
        out = self.self_attn_norm(hidden)
        out, _ = self.self_attn(out, out, mask)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        if encoded is not None and self.encoder_attn is not None and self.encoder_attn_norm is not None:
            residual = out
            out = self.encoder_attn_norm(out)
            out, _ = self.encoder_attn(out, encoded, None)
            out = dropout(out, self.dropout)
            out = add(residual, out)
        residual = out
        out = self.final_norm(out)
        out = self.act(self.fc1(out))
        out = dropout(out, self.activation_dropout)
        out = self.fc2(out)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        if out.dtype is dtypes.float16 and not self.decodes:
            out = clamp(out)
        return out


class Stack:
    """Encoder or decoder: positions, layers and a norm."""

    def __init__(self, decodes: bool, words: Embedding, spec: M2M100Spec, build: Builder):
        name = "decoder" if decodes else "encoder"
        layers = spec.decoder_layers if decodes else spec.num_hidden_layers
        self.decodes, self.words, self.attention = decodes, words, build.attention
        self.table = build.buffer(
            f"{name}.embed_positions.weights", (spec.max_position_embeddings + 2, spec.hidden_size), build.dtype
        )
        self.layers = build.layers(layers, lambda _: Layer(decodes, spec, build), name, f"{name}.", last=int(decodes))
        self.norm = build.layer_norm(name + ".layer_norm", spec.hidden_size)
        self.dropout = spec.dropout

    def __call__(self, ids: Tensor, encoded: Tensor | None = None) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = scaled(self.words, ids)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None) if self.decodes else None
        places = self._places(ids)
        hidden = add(embeds, places)
        hidden = dropout(hidden, self.dropout)
        for layer in self.layers:
            hidden = layer(hidden, mask, encoded)
        return self.norm(hidden)

    def _places(self, ids: Tensor) -> Tensor:
        """Rows of the table of positions, which are counted where a token is no padding."""
        numbers = _counted(ids)
        rows = empty(ids.tape, (numbers.numel, self.table.shape[1]), self.table.dtype, "index_select")
        return Tensor(rows.storage, (*ids.shape, self.table.shape[1]), rows.dtype)


def _counted(ids: Tensor) -> Tensor:
    """The position of each token (`create_position_ids_from_input_ids`)."""
    kept = unary("_to_copy", unary("ne", ids, dtypes.bool_), dtypes.int32)
    sums = unary("_to_copy", unary("cumsum", kept, dtypes.int64), dtypes.int32)
    sums = unary("add", sums)
    numbers = unary("mul", sums)
    del sums
    return unary("add", unary("_to_copy", numbers, dtypes.int64))


class M2M100(Bart):
    """The body of the model."""

    stack = Stack


def _seq2seq_lm(spec: M2M100Spec, build: Builder) -> Seq2SeqLM:
    body = M2M100(spec, build)
    return Seq2SeqLM(body, build.head(spec.hidden_size, spec.vocab_size, tied=True))


HEADS: dict[str, Head] = {"seq2seq-lm": _seq2seq_lm}
