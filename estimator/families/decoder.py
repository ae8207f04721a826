"""The body of a decoder: embeddings, positions, masks, rotary tables, layers, a last norm, in this order.

After the `...Model` classes of transformers' modeling files (5.23), with hooks where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from estimator.families.build import Builder
from estimator.families.decoder_layers import MakeNorm
from estimator.families.layers import Layer
from estimator.families.modules import rotary_table, token_positions
from estimator.families.rotary import frequencies
from estimator.families.spec import DecoderSpec
from estimator.families.windows import FULL, SLIDING, LayerType, causal_masks
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import dropout
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor

Table = tuple[Tensor, ...]
"""What rotates queries and keys: cosines and sines, mostly."""
Masks = Callable[[DecoderSpec, Tape, int, int, DType, str], dict[LayerType, Tensor | None]]
"""(spec, tape, sequences, tokens, type, implementation of attention) -> the mask of each kind of layer."""
Begin = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Embeddings -> what the first layer gets, and what else forward holds to its end."""

After = Callable[[Any, Tensor], Tensor]
"""(a layer's kind, what it returned) -> what the next layer gets."""


def seen(kind: Any) -> LayerType | None:
    """What a layer of a kind sees: a sliding window, or everything."""
    return SLIDING if kind == SLIDING else FULL


def dropped(build: Builder, p: float) -> Begin:
    """Dropout of the embeddings, which are held beside its result."""
    p = p if build.training else 0.0
    return lambda embeds: (dropout(embeds, p), embeds)


class Rotary:
    """The rotary embedding of the first `size` elements of each head.

    `dtype`: of its tables, if it is not the hidden states'. `kinds`: of layers which each have frequencies of their own; without
    them all layers share one table. `early`: whether it is made before the last norm, and lies before it.
    """

    def __init__(self, size: int, dtype: DType | None = None, kinds: Sequence[LayerType] = (), early: bool = False):
        self.size, self.dtype, self.kinds, self.early = size, dtype, tuple(dict.fromkeys(kinds)), early

    def buffers(self, build: Builder) -> list[Tensor]:
        """Frequencies, which live with the model."""
        return [t for _ in self.kinds or (FULL,) for t in frequencies(build, self.size)]

    def tables(self, ids: Tensor, dtype: DType) -> dict[LayerType, Table]:
        """The tables of one pass over token ids [batch, tokens], for each kind of layer."""
        tape, tokens, dtype = ids.tape, ids.shape[1], self.dtype or dtype
        if self.kinds:
            return {kind: self.table(tape, tokens, dtype) for kind in self.kinds}
        return dict.fromkeys((FULL, SLIDING), self.table(tape, tokens, dtype))

    def table(self, tape: Tape, tokens: int, dtype: DType) -> Table:
        """Cosines and sines."""
        return rotary_table(tape, tokens, self.size, dtype)


class Decoder:
    """Embeddings, a stack of layers, a norm.

    `layer`: makes a layer of a kind; `kinds`: that of each, where they are several: those with a sliding window are `SLIDING`.
    `norm`: makes the last norm, called `last`; without it the job's RMS norm. `embedding`: the name of the embeddings, which are
    multiplied by `scale`, a tensor of one number. `embedded`: what is done to them at once; `begin`: what is done to them once
    the masks are made. `sees`: which mask a layer of a kind is called with; None where it has none.
    `holding`: as of `Builder.layers`.
    `tail`: layers at the end that do what the others do not (`last` of `Builder.layers`).
    `positioned`: whether layers get the tokens' positions, too. `turns`: which rotary table a layer of a kind
    gets, None where it gets none; without it that of what it sees.
    `passes_over`: whether layers of a kind are not run.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        build: Builder,
        layer: Callable[[Any], Layer],
        kinds: Sequence[Any] | None = None,
        *,
        rotary: Rotary | None = None,
        norm: MakeNorm | None = None,
        last: str = "norm",
        embedding: str = "embed_tokens",
        scale: Tensor | None = None,
        embedded: Callable[[Tensor], Tensor] = lambda embeds: embeds,
        masks: Masks = causal_masks,
        begin: Begin = lambda embeds: (embeds, embeds),
        sees: Callable[[Any], LayerType | None] = seen,
        holding: bool = False,
        positioned: bool = True,
        turns: Callable[[Any], LayerType | None] | None = None,
        tail: int = 0,
        passes_over: Callable[[Any], bool] = lambda kind: False,
    ):
        self.spec, self.attention = spec, build.attention
        self.rotary = rotary or Rotary(spec.head_dim)
        self.passes_over = passes_over
        self.embedded, self.masks, self.begin, self.sees, self.positioned = embedded, masks, begin, sees, positioned
        self.turns = turns or (lambda kind: sees(kind) or FULL)
        self.embed_tokens = build.embedding(embedding, spec.vocab_size, spec.hidden_size, scale)
        self.layers = build.layers(spec.num_hidden_layers if kinds is None else kinds, layer, holding=holding, last=tail)
        self.buffers = self.rotary.buffers(build) if self.rotary.early else []
        self.norm = (norm or build.rms_norm)(last, spec.hidden_size)
        self.buffers = self.buffers or self.rotary.buffers(build)

    def forward(self, ids: Tensor, given: Tensor | None = None, prepared: dict[LayerType, Tensor | None] | None = None) -> Tensor:
        """Last hidden states, [batch, tokens, hidden]. `given`: embeddings in the place of those of `ids`; `prepared`: masks in
        the place of those that it would make."""
        return self.decode(ids, given, prepared)

    def decode(
        self,
        ids: Tensor,
        given: Tensor | None = None,
        prepared: dict[LayerType, Tensor | None] | None = None,
        positions: Tensor | None = None,
        after: After | None = None,
    ) -> Tensor:
        """The same. `positions`: in the place of those that it would count; `after`: what is done after each layer, whose own
        output is held until the next layer's is there."""
        tape = ids.tape
        batch, tokens = ids.shape
        embeds = self.embedded(self.embed_tokens(ids) if given is None else given)
        positions = token_positions(tape, tokens) if positions is None else positions
        masks = prepared or self.masks(self.spec, tape, batch, tokens, embeds.dtype, self.attention)
        hidden, embeds = self.begin(embeds)
        tables = self.rotary.tables(ids, hidden.dtype)
        handed = positions if self.positioned else None
        for kind, layer in self.layers.by_kind():
            if self.passes_over(kind):
                continue
            sees = self.sees(kind)
            turns = self.turns(kind)
            table = () if turns is None else tables[turns]
            out = layer(hidden, *table, None if sees is None else masks[sees], handed)
            hidden = out if after is None else after(kind, out)
        return self.norm(hidden)
