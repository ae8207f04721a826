"""DeepSeek-V2 and -V3: latent attention, shared and routed experts, some dense layers first.

After transformers' modeling_deepseek_v2.py and modeling_deepseek_v3.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary, Table
from estimator.families.decoder_layers import PreNorm
from estimator.families.experts import AUXILIARY, EXPERTS_HELD_IN, Experts, GroupedExpertsSpec, SharedExpertsSpec
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import decoder_heads
from estimator.families.latent import ComplexLatentAttention, LatentAttention
from estimator.families.latent_spec import LatentSpec
from estimator.families.modules import Module
from estimator.families.routers import DeepseekRouter, DeepseekV2Router, DeepseekV3Router
from estimator.families.spec import Size, called
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape


class _DeepseekSpec(LatentSpec, SharedExpertsSpec):
    """What both have in common."""

    held_in = EXPERTS_HELD_IN

    num_experts: Size = called("n_routed_experts", 64)
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        """Whether there are biases for queries, keys and values; in attention's output layer; in the feed-forward layers,
        which alone read this."""
        return self.attention_bias, self.attention_bias, self.mlp_bias


class DeepseekV2Spec(_DeepseekSpec):
    parts_in_sglang = True
    can = Abilities(megatron="latent", gguf=True, graph="deepseek", routing="not normalized", mlx_routers="whole")
    modelled = {**AUXILIARY, "moe_layer_freq": (1,), "scoring_func": ("softmax",)}

    n_shared_experts: Size = 2
    n_group: Size | None = None
    topk_group: Size | None = None
    topk_method: Literal["greedy", "group_limited_greedy"] = "greedy"


class DeepseekV3Spec(_DeepseekSpec, GroupedExpertsSpec):
    parts_in_sglang = True
    can = Abilities(megatron="latent", gguf=True, graph="deepseek", routing="sigmoid", mlx_routers="whole")

    max_position_embeddings: Size | None = 4096
    num_experts: Size = called("n_routed_experts", 256)
    num_experts_per_tok: Size = 8
    first_k_dense_replace: int = 3
    n_group: Size = 8
    topk_group: Size = 4
    rope_interleave: bool = True


SPECS = {"deepseek_v2": DeepseekV2Spec, "deepseek_v3": DeepseekV3Spec}


class DeepseekMoe:
    """Routed experts, and shared ones, which are one feed-forward layer, for every token.

    `router`: how they are chosen; without it as the spec's version does. `shared`: the width of the shared ones together.
    """

    def __init__(self, spec: Any, build: Builder, router: type[DeepseekRouter] | None = None, shared: int | None = None):
        self.experts = Experts(spec, build)
        router = router or (DeepseekV2Router if isinstance(spec, DeepseekV2Spec) else DeepseekV3Router)
        self.gate = router(spec, build)
        width = shared or spec.moe_intermediate_size * spec.n_shared_experts
        self.shared_experts = GatedMLP(spec, build, "mlp.shared_experts", width)

    def __call__(self, hidden: Tensor) -> Tensor:
        logits, weights, chosen = self.gate(hidden)
        out = reshape(hidden, (-1, hidden.shape[-1]))
        out = reshape(self.experts(out, chosen, weights), hidden.shape)
        out = add(out, self.shared_experts(hidden))
        del logits
        return out


class PolarRotary(Rotary):
    """V2's table: complex numbers."""

    def table(self, tape: Tape, tokens: int, dtype: DType) -> Table:
        return (empty(tape, (1, tokens, self.size // 2), dtypes.complex64, "polar"),)


def deepseek(spec: Any, build: Builder, experts: Callable[[Any, Builder], Module] = DeepseekMoe) -> Decoder:
    """The body of the model. `experts`: makes what a layer with experts has in the place of a feed-forward layer."""
    second = isinstance(spec, DeepseekV2Spec)
    rotary = (PolarRotary if second else Rotary)(spec.head_dim)

    def layer(sparse: bool) -> PreNorm:
        attention = (ComplexLatentAttention if second else LatentAttention)(spec, build)
        return PreNorm(spec, build, attention, experts(spec, build) if sparse else GatedMLP(spec, build))

    return Decoder(spec, build, layer, spec.sparse(), rotary=rotary)


HEADS = decoder_heads(deepseek)
