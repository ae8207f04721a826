"""Llama 4's mixtures of experts: all experts compute all tokens, of which those that are not chosen are multiplied by zero.

After transformers' modeling_llama4.py (5.23), `Llama4TextMoe`.
"""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import Contradiction
from estimator.families.build import Builder
from estimator.families.experts import entered
from estimator.families.feed_forward import GatedMLP
from estimator.families.modules import ACTIVATIONS, Linear
from estimator.tape import dtypes
from estimator.tape.matmul import bmm, linear
from estimator.tape.pointwise import add_, mul, sigmoid, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import scattered, topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import repeat, reshape, split, transpose


class Router:
    """Scores of each token and expert, [tokens, experts], zero but for the best; and these before they are chosen."""

    def __init__(self, spec: Any, build: Builder):
        if build.adapter is not None and build.adapter.targets("feed_forward.router"):
            raise Contradiction(
                "PEFT's layers read one tensor, and the router of llama4 models, a linear layer, too, returns two: name other "
                "layers, such as q_proj, or exclude router",
                "training.adapter.targets",
            )
        self.top_k, self.experts = spec.num_experts_per_tok, spec.num_local_experts
        self.weight = build.weight("feed_forward.router.weight", (self.experts, spec.hidden_size))
        plain = Linear(self.weight.tensor, None)
        masked = build.pruning(build, "feed_forward.router", plain)
        self.masked = masked if masked is not plain else None
        build.bypassed.append("feed_forward.router")  # a linear layer, as optimizers of matrices see it

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        with entered(self.weight):
            logits = linear(hidden, self.weight()) if self.masked is None else self.masked(hidden)
            values, chosen = topk(logits, self.top_k)
            scores = scattered(values, chosen, self.experts)
            scores = to(sigmoid(to(scores, dtypes.float32)), scores.dtype)
            del values, chosen
            return scores, logits


class Experts:
    """Two 3-D weights, [experts, hidden, 2 width] and [experts, width, hidden]."""

    def __init__(self, spec: Any, build: Builder):
        experts, size, width = spec.num_local_experts, spec.hidden_size, spec.intermediate_size
        used, name = spec.num_experts_per_tok, "feed_forward.experts"
        self.gate_up_proj = build.weight(f"{name}.gate_up_proj", (experts, size, 2 * width), used)
        self.down_proj = build.weight(f"{name}.down_proj", (experts, width, size), used)
        self.experts, self.size, self.act = experts, size, ACTIVATIONS[spec.hidden_act]

    def __call__(self, hidden: Tensor) -> Tensor:
        """`hidden`: every token once for each expert, [experts x tokens, hidden]."""
        with entered(self.gate_up_proj, self.down_proj):
            hidden = reshape(hidden, (self.experts, -1, self.size))
            gate_up = bmm(hidden, self.gate_up_proj())
            half = gate_up.shape[-1] // 2
            gate, up = split(gate_up, (half, half), 2)
            out = bmm(mul(up, self.act(gate)), self.down_proj())
            out = reshape(out, (-1, self.size))
            del gate_up, gate, up
            return out


class Llama4Moe:
    """What a shared expert makes of each token, and added to it what the others make."""

    def __init__(self, spec: Any, build: Builder):
        self.size = spec.hidden_size
        self.experts = Experts(spec, build)
        self.router = Router(spec, build)
        self.shared_expert = GatedMLP(spec, build, "feed_forward.shared_expert")

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What tokens get, [tokens, hidden], and the router's scores."""
        hidden = reshape(hidden, (-1, self.size))
        scores, logits = self.router(hidden)
        count = scores.shape[1]
        routed = repeat(hidden, count)
        routed = mul(routed, reshape(transpose(scores, 0, 1), (-1, 1)))
        made = self.experts(routed)
        out = self.shared_expert(hidden)
        out = add_(out, sum_dim(reshape(made, (count, -1, self.size)), 0))
        del scores, routed, made
        return out, logits
