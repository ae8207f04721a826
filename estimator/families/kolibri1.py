"""Kolibri 1: EXAONE 4's attention and a shared expert beside many narrow ones, each between norms.

After transformers' modeling_kolibri1.py (5.23).
"""

from __future__ import annotations

from typing import Any

from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import Sandwich
from estimator.families.deepseek import DeepseekMoe
from estimator.families.exaone4 import self_attention
from estimator.families.experts import AUXILIARY, MoeSpec
from estimator.families.heads import language_model
from estimator.families.routers import DeepseekV3Router
from estimator.families.spec import Size, called
from estimator.families.windows import LayerType, WindowedSpec
from estimator.tape.pointwise import add, div, sigmoid
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import gather, topk
from estimator.tape.tensor import Tensor


class Kolibri1Spec(WindowedSpec, MoeSpec):
    """Every layer has experts: nothing is `intermediate_size` wide, which its configuration does not have."""

    in_sglang = "transformers"
    last_vllm = "none"
    why_not_vllm = "0.33 runs transformers' modules of it, which are not modelled"
    modelled = AUXILIARY
    default_period = 5

    max_position_embeddings: Size | None = 262144
    intermediate_size: Size = 512
    sliding_window: Size = 513
    num_experts: Size = called("num_local_experts", 384)
    num_experts_per_tok: Size = 6
    moe_intermediate_size: Size = 512
    shared_expert_intermediate_size: Size = 512
    norm_topk_prob: bool = False

    @property
    def expert_size(self) -> int:
        return self.moe_intermediate_size

    def config(self) -> dict[str, Any]:
        return {name: value for name, value in super().config().items() if name != "intermediate_size"}


SPECS = {"kolibri1": Kolibri1Spec}


class Router(DeepseekV3Router):
    """The best experts by their scores in float32 and a bias; their weights are a sigmoid of the chosen scores only."""

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        chosen = topk(add(logits, self.correction), self.spec.num_experts_per_tok)[1]
        weights = sigmoid(gather(logits, chosen))
        if self.spec.norm_topk_prob:
            weights = div(weights, sum_dim(weights, -1, keepdim=True))
        return weights, chosen


def kolibri1(spec: Kolibri1Spec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(kind: LayerType) -> Sandwich:
        attention = self_attention(spec, build, kind)
        mlp = DeepseekMoe(spec, build, Router, spec.shared_expert_intermediate_size)
        names = "input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"
        before_attention, before_mlp, after_attention, after_mlp = [build.rms_norm(name, spec.hidden_size) for name in names]
        return Sandwich(attention, mlp, (before_attention, after_attention, before_mlp, after_mlp))

    return Decoder(spec, build, layer, spec.kinds)


HEADS = language_model(kolibri1)
