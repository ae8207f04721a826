"""ERNIE 4.5's mixtures: its attention, and experts beside shared ones, chosen by a softmax and a bias in float32.

After transformers' modeling_ernie4_5_moe.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.ernie4_5 import UNREAD, rotate
from estimator.families.experts import AUXILIARY, EXPERTS_HELD_IN, Experts, MoeSpec, entered
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import CausalLM, Head
from estimator.families.spec import RotaryDecoderSpec, Size, called
from estimator.tape import dtypes
from estimator.tape.autocast import paused
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, clamp, div, softmax, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import gather, topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape


class Ernie45MoeSpec(RotaryDecoderSpec, MoeSpec):
    """The layers from `moe_layer_start_index` to `moe_layer_end_index`, which is the last one if negative, have experts, where
    their number is a multiple of `moe_layer_interval`."""

    float32_router = True
    can = Abilities(gguf=True, graph="plain", routing="corrected")
    held_in = EXPERTS_HELD_IN
    modelled = {**AUXILIARY, **UNREAD}

    max_position_embeddings: Size | None = 131072
    tie_word_embeddings: bool = True
    use_bias: bool = False
    moe_intermediate_size: Size
    num_experts: Size = called("moe_num_experts", 64)
    num_experts_per_tok: Size = called("moe_k", 6)
    moe_num_shared_experts: int = 2
    moe_layer_start_index: int = 1
    moe_layer_end_index: int = -1
    moe_layer_interval: Size = 1

    @property
    def expert_size(self) -> int:
        return self.moe_intermediate_size

    def sparse(self) -> list[bool]:
        last = self.num_hidden_layers - 1 if self.moe_layer_end_index == -1 else self.moe_layer_end_index
        within = range(self.moe_layer_start_index, last + 1)
        return [i in within and (i + 1) % self.moe_layer_interval == 0 for i in range(self.num_hidden_layers)]


SPECS = {"ernie4_5_moe": Ernie45MoeSpec}


class Router:
    """Its weight and its bias, a parameter that is never trained, are in float32 whatever the model's type."""

    def __init__(self, spec: Ernie45MoeSpec, build: Builder):
        self.top_k = spec.num_experts_per_tok
        self.weight = build.weight("mlp.gate.weight", (spec.num_experts, spec.hidden_size), dtype=dtypes.float32)
        name = "mlp.gate.moe_statics.e_score_correction_bias"
        self.correction = build.parameter(name, (1, spec.num_experts), dtypes.float32, trainable=False)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            with paused(hidden.tape):
                logits = linear(to(hidden, dtypes.float32), to(self.weight(), dtypes.float32))
                weights = softmax(logits, dtypes.float32)
                best, chosen = topk(add(weights, reshape(self.correction, (-1,))), self.top_k)
                weights = gather(weights, chosen)
                # torch bounds it from below, which takes what a bound from above takes
                weights = div(weights, clamp(sum_dim(weights, -1, keepdim=True), lower=False))
            weights = to(weights, hidden.dtype)
            del best
            return logits, weights, chosen


class Moe:
    def __init__(self, spec: Ernie45MoeSpec, build: Builder):
        self.gate = Router(spec, build)
        self.experts = Experts(spec, build)
        width = spec.moe_intermediate_size * spec.moe_num_shared_experts
        self.shared_experts = GatedMLP(spec, build, "mlp.shared_experts", width, spec.use_bias) if width else None

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        shared = None if self.shared_experts is None else self.shared_experts(flat)
        logits, weights, chosen = self.gate(flat)
        out = self.experts(flat, chosen, weights)
        if shared is not None:
            out = add(out, shared)
        del logits
        return to(reshape(out, hidden.shape), flat.dtype)


def ernie4_5_moe(spec: Ernie45MoeSpec, build: Builder) -> Decoder:
    """The body of the model."""
    bias = spec.use_bias

    def layer(sparse: bool) -> PreNorm:
        attention = GroupedQueryAttention(spec, build, bias, bias, rotate=rotate)
        return PreNorm(spec, build, attention, Moe(spec, build) if sparse else GatedMLP(spec, build, bias=bias))

    return Decoder(spec, build, layer, spec.sparse(), rotary=Rotary(spec.head_dim, dtypes.float32))


def _causal_lm(spec: Ernie45MoeSpec, build: Builder) -> CausalLM:
    return CausalLM(ernie4_5_moe(spec, build), spec, build, spec.use_bias)


HEADS: dict[str, Head] = {"causal-lm": _causal_lm}
