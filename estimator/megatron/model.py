"""One pipeline stage of a model as Megatron-Core builds it: its layers, and the embedding and the output layer where they are.

After core/models/gpt/gpt_model.py, core/models/common and core/tensor_parallel of Megatron-Core 0.15. Hidden states are [tokens,
sequences, width], of this rank's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from estimator.contract.units import MIB
from estimator.families.build import Builder
from estimator.families.heads import Batch
from estimator.megatron.attention import HOPPER, Context, SelfAttention
from estimator.megatron.config import Config
from estimator.megatron.execution import MLP, Execution
from estimator.megatron.experts import Dispatch, MoeLayer
from estimator.megatron.gpt_layer import Layer, Positions, layer_norm
from estimator.megatron.layer import Mlp, TransformerLayer
from estimator.megatron.linear import Norm, OutputLayer, Split
from estimator.megatron.losses import Loss
from estimator.megatron.mla import LatentAttention
from estimator.megatron.mtp import PredictionLayer, rolled, scored
from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.checkpoint import reentrant_checkpoint
from estimator.tape.collectives import Group, all_gather, reduce_scatter
from estimator.tape.loss import embedding
from estimator.tape.pointwise import add_scalar, mul, mul_scalar
from estimator.tape.tape import COMMUNICATION, Tape
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import cat, clone, contiguous, reshape, split, transpose

WORKSPACE, WORKSPACE_HOPPER = 4 * MIB, 32 * MIB + 1024
"""Bytes that Transformer Engine gives cuBLAS for its products (cpp_extensions/gemm.py, `get_cublas_workspace_size_bytes`)."""
GROUPED_STREAMS = 4
"""Streams in which experts' products run, each with a workspace of its own (`tex.get_num_cublas_streams`)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part of a model is: its number, which layers of the whole it has, and whether it is the first part or the last.

    `ahead`: layers after the last that predict tokens after the next one; whether they are recomputed.
    """

    number: int
    layers: range
    first: bool
    last: bool
    tensor: Split
    context: Context
    dispatch: Dispatch
    how: Execution
    ahead: int = 0
    ahead_recomputed: bool = False


class Embedding:
    """Rows of the table are split over ranks: tokens of others are masked, and the sum over ranks is all tokens'."""

    def __init__(self, config: Config, build: Builder, ranks: Split):
        self.ranks = ranks
        self.positions: Positions | None = None
        rows = config.rows(ranks.group.size)
        self.weight = build.parameter("embedding.word_embeddings.weight", (rows, config.hidden), tokens=True)
        if config.classic is not None:
            self.positions = Positions(config.classic, config.hidden, build, ranks)

    def __call__(self, ids: Tensor) -> Tensor:
        if self.positions is not None:
            return self.positions(self.words(ids, False))
        return self.words(ids, self.ranks.sequence)

    def words(self, ids: Tensor, sequence: bool) -> Tensor:
        """Embeddings of `ids` without positions, [tokens, sequences, width]; `sequence`: of this rank's tokens only."""
        ranks = self.ranks
        if ranks.group.size == 1:
            return contiguous(transpose(embedding(self.weight, ids), 0, 1))
        mask = empty(ids.tape, ids.shape, dtypes.bool_, "or")
        masked = add_scalar(unary("clone", ids))
        rows = _masked(embedding(self.weight, masked), mask)
        by_token = contiguous(transpose(rows, 0, 1))
        del rows
        if not sequence:
            return _summed(by_token, ranks.group)
        return clone(_scattered(by_token, ranks.group))


def _masked(x: Tensor, mask: Tensor) -> Tensor:
    """`x[mask] = 0` in place; backward zeroes a copy of the gradient."""
    node = record("IndexPutBackward", (x,), (mask,), lambda g, _: unary("index_put", g))
    return attach(node, x.detach())


def _scattered(x: Tensor, group: Group) -> Tensor:
    """The sum over ranks, of this rank's tokens (`reduce_scatter_to_sequence_parallel_region`)."""
    node = record("ReduceScatter", (x,), (), lambda g: all_gather(g, group))
    return attach(node, reduce_scatter(x, group))


def _summed(x: Tensor, group: Group) -> Tensor:
    """The sum over ranks, in place (`reduce_from_tensor_model_parallel_region`)."""
    x.tape.communicate("all_reduce", group.name, group.size, x.nbytes)
    return attach(record("AllReduce", (x,), (), lambda g: g), x.detach())


class Stage:
    """A part of a model that one rank has."""

    def __init__(self, config: Config, build: Builder, place: Place, batch: Batch, loss: Loss, label: str = "layers"):
        self.config, self.place, self.batch = config, place, batch
        self.number, self.first, self.last = place.number, place.first, place.last
        self.dtype, self.tape, self.loss = build.dtype, build.tape, loss
        self.embedding = Embedding(config, build, place.tensor) if place.first or (place.last and place.ahead) else None
        kinds = [config.sparse[i] for i in place.layers]
        edge = 0 if place.last else 1  # the gradient that the last layer gets is the schedule's, and outlives it
        self.layers = build.layers(kinds, lambda sparse: self.layer(config, build, sparse), label, last=edge)
        if place.last:
            last_norm = "decoder.final_layernorm"
            plain = Norm(build.parameter(f"{last_norm}.weight", (config.hidden,)), None) if config.classic is None else None
            self.norm = plain or layer_norm(build, last_norm, config.hidden)
            self.output_layer = OutputLayer(self.output_weight(build), place.tensor)
        self.ahead = [self._ahead(config, build) for _ in range(place.ahead if place.last else 0)]
        self.held = self._lasting()

    def layer(self, config: Config, build: Builder, sparse: bool) -> TransformerLayer | Layer:
        """A layer of its kind."""
        place = self.place
        if config.classic is not None:
            return Layer(config.classic, config, build, place.tensor, place.context)
        latent, mixture = config.latent, config.mixture
        attention = (
            SelfAttention(config, build, place.tensor, place.context, place.how)
            if latent is None
            else LatentAttention(config, latent, build, place.tensor, place.context, place.how)
        )
        if not sparse or mixture is None:
            mlp = Mlp(config, build, place.tensor, place.how)
            return TransformerLayer(attention, partial(reentrant_checkpoint, mlp) if MLP in place.how.recomputed else mlp)
        return TransformerLayer(attention, MoeLayer(config, mixture, build, place.tensor, place.dispatch, place.how))

    def _ahead(self, config: Config, build: Builder) -> PredictionLayer:
        """A layer that predicts one token further, with one of the last layer's kind."""
        place, layer = self.place, self.layer(config, build, config.sparse[-1])
        return PredictionLayer(config, build, place.tensor, place.how, layer, place.ahead_recomputed)

    def output_weight(self, build: Builder) -> Tensor:
        """The embedding's, if it is tied and here; else one of its own."""
        if self.config.tied and self.embedding is not None:
            return self.embedding.weight
        return build.parameter("output_layer.weight", (self.config.rows(self.place.tensor.group.size), self.config.hidden))

    @property
    def tokens(self) -> int:
        """Tokens of a sequence that are this rank's in attention's context."""
        return self.batch.tokens // self.place.context.group.size

    def hidden(self, operation: str) -> Tensor:
        """New hidden states, as they pass from stage to stage."""
        tokens = self.tokens // self.place.tensor.group.size if self.place.tensor.sequence else self.tokens
        return empty(self.tape, (tokens, self.batch.sequences, self.config.hidden), self.dtype, operation)

    def _lasting(self) -> list[Tensor]:
        """What is made once and kept: rotary frequencies, and the buffer where the head gathers tokens."""
        tokens, tape = self.tokens, self.tape
        held = [empty(tape, (tokens, 1, 1, self.config.head_dim), dtypes.float32, "rotary_pos_emb")]
        if self.place.last and self.place.tensor.sequence and self.output_layer.weight.requires_grad:
            with tape.counting(COMMUNICATION):
                held.append(empty(tape, (tokens, self.batch.sequences, self.config.hidden), self.dtype, "global_memory_buffer"))
        return held

    def inputs(self) -> Sequence[Tensor]:
        """Token ids, labels, positions and the loss's mask, on the stages that need them."""
        if not (self.place.first or self.place.last):
            return ()
        types = [dtypes.int64, dtypes.int64, dtypes.int64, dtypes.float32]
        return [empty(self.tape, (self.batch.sequences, self.tokens), dtype, "batch") for dtype in types]

    def forward(self, received: Tensor | None, *given: Tensor) -> tuple[Tensor, None]:
        """The loss on the last stage, hidden states on the others; from the batch on the first, else from what was received."""
        hidden = self.embedding(given[0]) if self.embedding is not None and self.place.first else received
        assert hidden is not None
        if self.place.how.lora is not None:
            hidden.requires_grad = True  # as ms-swift sets it, lest nothing of layers that are recomputed be differentiated
        for layer in self.layers:
            hidden = layer(hidden, self.held[0])
        if not self.place.last:
            return hidden, None
        ids, labels, _, mask = given
        normed = self.norm(hidden)
        states = self._states(normed, ids) if self.ahead else [normed]
        del normed
        with self.tape.losing():
            losses = self._losses(states, labels, mask)
            weighted = mul(reshape(losses, (-1,)), reshape(mask, (-1,)))  # `loss_func` of pretrain_gpt.py
            return _sum(weighted), None

    def _states(self, hidden: Tensor, ids: Tensor) -> list[Tensor]:
        """Hidden states, and those of each layer ahead, as parts of one tensor."""
        assert self.embedding is not None
        states = [hidden]
        for layer in self.ahead:
            ids = rolled(ids)
            embedded = self.embedding(ids)
            states.append(layer(states[-1], embedded, self.held[0]))
        return split(cat(states, 0), [hidden.shape[0]] * len(states), 0)

    def _losses(self, states: list[Tensor], labels: Tensor, mask: Tensor) -> Tensor:
        """The loss of each token, [sequences, tokens]; losses ahead come in in backward. The last logits ahead live on."""
        hidden, *ahead = states
        states.clear()
        further = labels
        for state in ahead:
            logits = self.output_layer(state)
            further, mask = rolled(further), rolled(mask)
            hidden = scored(hidden, mul_scalar(mul(self._loss_of(logits, further), mask)))
        main = self.output_layer(hidden)
        return self._loss_of(main, labels)

    def _loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        losses = self.loss(logits, contiguous(transpose(labels, 0, 1)), self.place.tensor.group)
        return contiguous(transpose(losses, 0, 1))


def workspaces(tape: Tape, grouped: bool) -> list[Tensor]:
    """cuBLAS's, which a rank keeps once made; of `grouped` products, experts', one for each stream."""
    size = WORKSPACE_HOPPER if tape.gpu.at_least(HOPPER) else WORKSPACE
    return [empty(tape, (size,), dtypes.uint8, "cublas_workspace") for _ in range(1 + GROUPED_STREAMS * grouped)]


def _sum(x: Tensor) -> Tensor:
    shape = x.shape

    def backward(g: Tensor) -> Gradient:
        return Tensor(g.storage, shape, g.dtype, (0,))

    return attach(record("SumBackward", (x,), (), backward), empty(x.tape, (), x.dtype, "sum"))
