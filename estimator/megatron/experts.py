"""A mixture of experts as Megatron-Core runs it: tokens go to the ranks that have their experts, and come back.

After core/transformer/moe (0.15), `MoELayer` with the all-to-all dispatcher, `TEGroupedMLP`, and Transformer Engine's fused
permutation. Rows are what is sent: a token for each of its experts; with a capacity, so many for every expert, empty or not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from math import prod

from estimator.families.build import Builder
from estimator.megatron.config import Config, Mixture
from estimator.megatron.execution import LAYER_NORM, MOE, MOE_ACTIVATION, SHARED_EXPERTS, Execution
from estimator.megatron.layer import Mlp
from estimator.megatron.linear import Norm, Split
from estimator.megatron.mla import gathered
from estimator.megatron.recomputed import discarding
from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.checkpoint import reentrant_checkpoint
from estimator.tape.collectives import Group, all_to_all, reduce_scatter
from estimator.tape.layout import Shape
from estimator.tape.pointwise import add, mul, mul_scalar, sigmoid, softmax, to
from estimator.tape.tensor import Tensor, empty, like, output, unary
from estimator.tape.views import reshape


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Who has experts, and how full they get. `capacity`: the factor by which an expert may get more than its share of rows, to
    which all are padded. `imbalance`: without one, how many more rows the fullest rank gets than the mean."""

    expert: Group
    tensor: Group
    capacity: float | None
    imbalance: float

    def sent(self, mixture: Mixture, tokens: int) -> int:
        """Rows (a token for each of its experts) that a rank sends to the ranks of the experts."""
        rows = tokens * mixture.per_token
        if self.capacity is None:
            return rows
        return math.ceil(rows / mixture.experts * self.capacity) * mixture.experts

    def received(self, sent: int) -> int:
        """Rows that it gets, if all send as many."""
        return sent if self.capacity is not None else math.ceil(sent * self.imbalance)


class MoeLayer:
    """The layer's norm, the router, the experts of this rank, and those that every token passes."""

    def __init__(self, config: Config, mixture: Mixture, build: Builder, ranks: Split, dispatch: Dispatch, how: Execution):
        self.mixture, self.dispatch, self.how = mixture, dispatch, how
        self.pre_mlp_layernorm = Norm(build.parameter("pre_mlp_layernorm.weight", (config.hidden,)), None)
        self.router = build.parameter("mlp.router.weight", (mixture.experts, config.hidden))
        local, width = mixture.experts // dispatch.expert.size, mixture.width // dispatch.tensor.size
        used = mixture.per_token
        fc1 = _experts(build, how, "linear_fc1", local, (2 * width, config.hidden), used / mixture.experts)
        fc2 = _experts(build, how, "linear_fc2", local, (config.hidden, width), used / mixture.experts)
        self.local, self.fc1 = local, how.grouped(build, fc1, ranks.later)
        self.fc2 = how.grouped(build, fc2, ranks.later, of_activation=True)
        self.shared = Mlp(config, build, ranks, how, "mlp.shared_experts", mixture.shared, norm=False) if mixture.shared else None
        self.gate = build.parameter("mlp.shared_experts.gate_weight", (1, config.hidden)) if mixture.shared_gate else None

    def __call__(self, hidden: Tensor) -> Tensor:
        recomputed = self.how.recomputed
        run = partial(reentrant_checkpoint, self.run) if MOE in recomputed else self.run
        if LAYER_NORM in recomputed:
            return discarding(run, self.pre_mlp_layernorm, hidden)
        return run(self.pre_mlp_layernorm(hidden))

    def run(self, hidden: Tensor) -> Tensor:
        """Route tokens to experts, compute and combine. Lifetimes are those in `custom_forward`: rows before and after they
        are sent, and the experts' results, live to its end."""
        rows, probs, row_id_map = self.routed(hidden)
        arrived, arrived_probs = self.sent(rows, probs)
        out, shared = self.computed(arrived, arrived_probs, hidden)
        return self.combined(out, shared, row_id_map, rows.shape, hidden.shape)

    def combined(self, rows: Tensor, shared: Tensor | None, row_id_map: Tensor, sent: Shape, shape: Shape) -> Tensor:
        """The rows back where they came from, summed up for each token, and the shared experts' result."""
        out = _exchanged(rows, self.dispatch.expert, sent)
        out = reshape(_unpermuted(out, row_id_map, (prod(shape[:-1]), shape[-1])), shape)
        return out if shared is None else add(out, shared)

    def routed(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, sorted by expert, and how much each counts; and where they came from."""
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        probs, chosen = route(flat, self.router, self.mixture, self.dispatch.capacity is not None)
        tokens, experts = chosen.shape
        row_id_map = empty(flat.tape, (tokens, 2 * experts + 1), dtypes.int32, "row_id_map")
        rows, weights = _permuted(flat, probs, row_id_map, self.dispatch.sent(self.mixture, tokens))
        return rows, weights, row_id_map

    def sent(self, rows: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
        """What arrives of other ranks."""
        count, expert = self.dispatch.received(rows.shape[0]), self.dispatch.expert
        return _exchanged(rows, expert, (count, *rows.shape[1:])), _exchanged(probs, expert, (count,))

    def computed(self, rows: Tensor, probs: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """The experts' results for the rows that arrived, and for all tokens that of the shared ones."""
        shared = None
        if self.shared is not None:
            shared = reentrant_checkpoint(self._shared, hidden) if SHARED_EXPERTS in self.how.recomputed else self._shared(hidden)
        tensor = self.dispatch.tensor
        if tensor.size > 1:
            rows, probs = gathered(rows, tensor), gathered(probs, tensor)
        ordered, weights = _sorted(rows), _sorted(probs)
        out = _sorted(self._experts(ordered, weights))
        return (_summed(out, tensor) if tensor.size > 1 else out), shared

    def _experts(self, rows: Tensor, probs: Tensor) -> Tensor:
        before, padded = rows.shape[0], self._padded(rows.shape[0])
        if padded:
            rows, probs = _resized(rows, padded), _resized(probs, padded)
        inner = self.fc1(rows)
        if MOE_ACTIVATION in self.how.recomputed:
            out = discarding(self.fc2, weighted_swiglu, inner, probs)
        else:
            inner = weighted_swiglu(inner, probs)
            out = self.fc2(inner)
        return _resized(out, before) if padded else out

    def _padded(self, rows: int) -> int:
        """Rows, with each expert's filled up for products in fp8 (`Fp8Padding`); 0 where all have a capacity that suits."""
        if self.how.fp8 is None:
            return 0
        step = self.local * self.how.fp8.alignment
        padded = -(-rows // step) * step
        return 0 if padded == rows and self.dispatch.capacity is not None else padded

    def _shared(self, hidden: Tensor) -> Tensor:
        assert self.shared is not None
        out = self.shared(hidden)
        return out if self.gate is None else mul(out, sigmoid(_gating(hidden, self.gate)))


def route(flat: Tensor, weight: Tensor, mixture: Mixture, drops: bool) -> tuple[Tensor, Tensor]:
    """How much each expert counts for each token, [tokens, experts], and which are chosen (core/transformer/moe/router.py)."""
    logits = _gating(flat, weight)
    scores = to(softmax(logits, dtypes.float32), logits.dtype)
    probs = mul_scalar(_top(scores, mixture.per_token))
    spread = _scattered(probs, logits.shape)
    chosen = empty(flat.tape, logits.shape, dtypes.bool_, "bool")
    if drops:
        chosen = empty(flat.tape, logits.shape, dtypes.bool_, "bool")
        spread = mul(spread, chosen)
    return _balanced(spread, softmax(logits, dtypes.float32)), chosen


def _gating(x: Tensor, weight: Tensor) -> Tensor:
    """`router_gating_linear`: a product, whose weight's gradient autograd gets. Saves its input."""

    def backward(g: Tensor, x: Tensor) -> tuple[Gradient, Gradient]:
        rows, (outputs, inputs) = g.numel // g.shape[-1], weight.shape
        x.tape.multiply(rows, inputs, outputs, x.dtype)
        x.tape.multiply(outputs, inputs, rows, x.dtype)
        return like("gemm", x), like("gemm", weight)

    node = record("RouterGatingLinear", (x, weight), (x,), backward)
    x.tape.multiply(x.numel // x.shape[-1], weight.shape[0], weight.shape[1], x.dtype)
    return attach(node, empty(x.tape, (*x.shape[:-1], weight.shape[0]), x.dtype, "gemm"))


def _top(scores: Tensor, count: int) -> Tensor:
    """`torch.topk`: saves the indices."""
    shape, tape = scores.shape, scores.tape
    node = record("TopkBackward", (scores,), (), lambda g, _: empty(g.tape, shape, g.dtype, "zeros"))
    out = empty(tape, (*shape[:-1], count), scores.dtype, "topk")
    indices = empty(tape, (*shape[:-1], count), dtypes.int64, "topk")
    if node is not None:
        node.save((indices,))
    return attach(node, out)


def _scattered(probs: Tensor, shape: Shape) -> Tensor:
    """Into zeros of [tokens, experts]; its gradient is gathered again. (The indices are those that `topk` saved.)"""
    before = probs.shape
    node = record("ScatterBackward", (probs,), (), lambda g: empty(g.tape, before, g.dtype, "gather"))
    return attach(node, empty(probs.tape, shape, probs.dtype, "scatter"))


def _balanced(probs: Tensor, scores: Tensor) -> Tensor:
    """The loss that balances experts is attached to the probabilities (`MoEAuxLossAutoScaler`): a sum over the scores."""
    shape = scores.shape

    def backward(g: Tensor) -> tuple[Gradient, Gradient]:
        return g, Tensor(g.storage, shape, dtypes.float32, (0, 0))

    return attach(record("MoEAuxLossAutoScaler", (probs, scores), (), backward), probs.detach())


def _permuted(flat: Tensor, probs: Tensor, row_id_map: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Tokens and probabilities sorted by expert (`fused_permute_with_probs`). Saves the map."""
    shapes = flat.shape, probs.shape

    def backward(*given: Gradient) -> list[Gradient]:
        like = next(g for g in given if g is not None)
        return [output("unpermute", (like,), shape, like.dtype) for shape in shapes]

    node = record("MoePermuteMaskMap", (flat, probs), (row_id_map,), backward, outputs=2)
    width = flat.shape[1]
    outs = [attach(node, output("permute", (x,), shape, flat.dtype)) for x, shape in ((flat, (rows, width)), (probs, (rows,)))]
    outs[1].output_nr = 1
    return outs[0], outs[1]


def _unpermuted(rows: Tensor, row_id_map: Tensor, shape: tuple[int, int]) -> Tensor:
    """Tokens in their own order, the rows of each summed up."""
    before = rows.shape
    node = record("MoeUnpermuteMaskMap", (rows,), (row_id_map,), lambda g, _: output("permute", (g,), before, g.dtype))
    return attach(node, output("unpermute", (rows,), shape, rows.dtype))


def _exchanged(x: Tensor, group: Group, shape: Shape) -> Tensor:
    """All-to-all among the ranks that have experts, each way."""
    before = x.shape
    if group.size == 1:
        return x
    node = record("AllToAll", (x,), (), lambda g: all_to_all(g, group, before))
    return attach(node, all_to_all(x, group, shape))


def _sorted(x: Tensor) -> Tensor:
    """Rows of all ranks, by this rank's experts, or back: a copy each way."""
    return attach(record("SortChunks", (x,), (), lambda g: unary("sort_chunks", g)), unary("sort_chunks", x))


def _summed(x: Tensor, group: Group) -> Tensor:
    """The sum over the ranks that share an expert, of this rank's rows."""
    before = x.shape
    node = record("ReduceScatter", (x,), (), lambda g: empty(g.tape, before, g.dtype, "all_gather"))
    return attach(node, reduce_scatter(x, group))


def _resized(x: Tensor, rows: int) -> Tensor:
    """Rows put in or taken out in a copy, each way."""
    before = x.shape
    node = record("Fp8Padding", (x,), (), lambda g: output("unpad", (g,), before, g.dtype))
    return attach(node, output("pad", (x,), (rows, *before[1:]), x.dtype))


def weighted_swiglu(x: Tensor, probs: Tensor) -> Tensor:
    """SwiGLU times a number per row, in one kernel each way (`WeightedSwiGLUFunction`). Saves both."""
    node = record("WeightedSwiGLU", (x, probs), (x, probs), lambda g, x, p: (unary("swiglu_back", x), unary("sum", p)))
    return attach(node, output("weighted_swiglu", (x,), (x.shape[0], x.shape[1] // 2), x.dtype))


def _experts(build: Builder, how: Execution, name: str, local: int, shape: tuple[int, int], used: float) -> Tensor:
    """The weights of this rank's experts, of which a token uses so large a part."""
    count = local * prod(shape)
    return how.weight(build, f"mlp.experts.{name}.weight", (local, *shape), active=round(count * used))
