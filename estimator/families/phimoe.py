"""Phi-3.5-MoE: layer norms, biases in attention, and two experts for each token, drawn by SparseMixer.

After transformers' modeling_phimoe.py (5.23). Its router is a linear layer that returns three tensors, so that PEFT cannot put
another in its place; bitsandbytes leaves it as it is, for it takes `torch.nn.Linear` alone and no subclass of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from estimator.contract.errors import Contradiction
from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.experts import AUXILIARY, Experts, MoeSpec, entered
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import CausalLM, Head
from estimator.families.rotary import RotarySpec
from estimator.families.spec import Size, called
from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, no_grad, record
from estimator.tape.matmul import linear
from estimator.tape.pointwise import softmax, sub, to
from estimator.tape.selection import gather, masked_fill, max_last
from estimator.tape.tensor import Tensor, binary, empty, unary
from estimator.tape.views import cat, reshape, unsqueeze


class PhimoeSpec(RotarySpec, MoeSpec):
    """`rope_type`: `longrope` changes no shape, and its factors are not kept."""

    can = Abilities(gguf=True, graph="phi-moe")
    modelled = {**AUXILIARY, "input_jitter_noise": (0, None)}
    ropes = ("default", "longrope")
    without_lora = ("router",)

    max_position_embeddings: Size | None = 131072
    num_experts: Size = called("num_local_experts", 16)
    num_experts_per_tok: Literal[2] = 2
    sliding_window: Size | None = None
    attention_bias: bool = False
    lm_head_bias: bool = False

    @property
    def window(self) -> int | None:
        return self.sliding_window

    @classmethod
    def from_rope(cls, kind: str, nested: Mapping[str, Any]) -> dict[str, Any]:
        return {}


SPECS = {"phimoe": PhimoeSpec}


class Router:
    """Of each token the first expert, and then, of the others, the second: each is drawn among those near the best."""

    def __init__(self, spec: PhimoeSpec, build: Builder):
        if build.adapter is not None and build.adapter.targets("mlp.router"):
            raise Contradiction(
                "PEFT's layers read one tensor, and the router of phimoe models, a linear layer, too, returns three: name other "
                "layers, such as q_proj, or exclude router",
                "training.adapter.targets",
            )
        self.training = build.training
        self.weight = build.weight("mlp.router.weight", (spec.num_experts, spec.hidden_size))

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            logits = linear(hidden, self.weight())
            weights, chosen = sparsemixer(logits, self.training)
            return logits, weights, chosen


def sparsemixer(scores: Tensor, training: bool) -> tuple[Tensor, Tensor]:
    """Weights and numbers of two experts of each token, [tokens, 2]; `scores`: [tokens, experts]."""
    far, place, factor = _far(scores, scores)
    first = _drawn(scores, scores, far, place, training)
    weight, chosen = first[:2]
    masked = _without(scores, chosen)
    far, place, factor = _far(scores, masked)
    second = _drawn(scores, masked, far, place, training)
    weights = cat((weight, second[0]), -1)
    both = cat((chosen, second[1]), -1)
    del factor, first
    return weights, both


def _far(scores: Tensor, masked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which experts are far from the best of those that are not masked; the best; and what the distance is divided by."""
    with no_grad(scores.tape):
        best, place = max_last(masked, keepdim=True)
        amount = unary("abs", scores)
        factor = unary("clamp", amount)
        del amount
        distance = binary("sub", best, scores)
        share = binary("div", distance, factor)
        del distance
        return unary("gt", share, dtypes.bool_), place, factor


def _drawn(scores: Tensor, masked: Tensor, far: Tensor, best: Tensor, training: bool) -> tuple[Tensor, ...]:
    """The weight and the number of an expert, [tokens, 1]; and what forward holds to its end."""
    gates = masked_fill(masked, far)
    chosen = _sampled(gates) if training else best
    gates = softmax(gates)
    if not training:
        return gather(gates, chosen), chosen, gates, far
    gates = gates.detach()
    weight = gather(gates, chosen)
    top, place = max_last(gates, keepdim=True)
    one = _whole(top, chosen, place, gates)
    return _multiplied(scores, weight, chosen, gates, one, far), chosen, gates, weight, top, place, one, far


def _sampled(gates: Tensor) -> Tensor:
    """An expert drawn by its chances: the best of scores less random numbers' logarithms."""
    random = unary("exponential_", gates.detach())
    noise = unary("log", random)
    del random
    noisy = sub(gates, noise)
    del noise
    return unsqueeze(max_last(noisy)[1], 1)


def _whole(top: Tensor, chosen: Tensor, place: Tensor, gates: Tensor) -> Tensor:
    """One where the best expert was drawn, and at times elsewhere; else a third."""
    equal = binary("eq", chosen, place, dtypes.bool_)
    random = unary("rand_like", top.detach())
    often = unary("gt", random, dtypes.bool_)
    del random
    either = binary("logical_or", equal, often, dtypes.bool_)
    del equal, often
    wide = unary("add", either, dtypes.float32)
    return to(wide, gates.dtype)


def _multiplied(scores: Tensor, weight: Tensor, chosen: Tensor, gates: Tensor, one: Tensor, far: Tensor) -> Tensor:
    """weight * one, whose gradient is that of the scores (`PhimoeMultiplier`). No gradient goes to the gates; the mask that they
    were made with is saved until backward comes by."""

    def backward(g: Tensor, weight: Tensor, chosen: Tensor, gates: Tensor, _: Tensor) -> Gradient:
        scaled = binary("mul", g, weight)
        negated = unary("mul", scaled)
        return binary("mul", gates, negated)

    node = record("PhimoeMultiplier", (scores,), (weight, chosen, gates, far), backward)
    return attach(node, binary("mul", weight, one))


def _without(scores: Tensor, chosen: Tensor) -> Tensor:
    """Scores of which those of the chosen experts are no more. Saves these experts' numbers."""
    node = record("ScatterBackward", (scores,), (chosen,), lambda g, _: unary("scatter", g))
    return attach(node, empty(scores.tape, scores.shape, scores.dtype, "scatter"))


class Moe:
    def __init__(self, spec: PhimoeSpec, build: Builder):
        self.router = Router(spec, build)
        self.experts = Experts(spec, build)

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits, weights, chosen = self.router(flat)
        out = self.experts(flat, chosen, weights)
        del logits
        return reshape(out, hidden.shape)


def phimoe(spec: PhimoeSpec, build: Builder) -> Decoder:
    """The body of the model."""
    bias = spec.attention_bias

    def layer(_: None) -> PreNorm:
        return PreNorm(spec, build, GroupedQueryAttention(spec, build, bias, bias), Moe(spec, build), build.layer_norm)

    return Decoder(spec, build, layer, norm=build.layer_norm)


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: CausalLM(phimoe(spec, build), spec, build, bias=spec.lm_head_bias)}
