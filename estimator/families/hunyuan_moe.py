"""Hunyuan's mixtures: its dense models' attention, and experts beside a feed-forward layer for every token.

After transformers' modeling_hunyuan_v1_moe.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.experts import AUXILIARY, EXPERTS_HELD_IN, Experts, MoeSpec
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import decoder_heads
from estimator.families.hunyuan import self_attention
from estimator.families.spec import RotaryDecoderSpec, Size, called
from estimator.tape import dtypes
from estimator.tape.pointwise import add, div_, softmax, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape


class HunyuanMoeSpec(RotaryDecoderSpec, MoeSpec):
    """Numbers of experts that a config lists for each layer are read where they are all the same."""

    can = Abilities(gguf=True, graph="hunyuan")
    held_in = EXPERTS_HELD_IN
    modelled = AUXILIARY

    num_experts: Size = 1
    num_experts_per_tok: Size = called("moe_topk", 1)
    attention_bias: bool = False

    @model_validator(mode="before")
    @classmethod
    def _one_number(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        made = dict(given)
        for name in ("num_experts", "moe_topk"):
            said = made.get(name)
            if isinstance(said, list | tuple):
                if not said or any(number != said[0] for number in said):
                    raise ValueError(f"{name} differs between layers, which is not modelled yet: write one number")
                made[name] = said[0]
        return made


SPECS = {"hunyuan_v1_moe": HunyuanMoeSpec}


class Gate:
    """Softmax over all experts, then the best ones; its linear layer is in float32 whatever the model's type, unless FSDP casts
    it."""

    def __init__(self, spec: HunyuanMoeSpec, build: Builder):
        self.top_k = spec.num_experts_per_tok
        self.wg: Any = build.linear("mlp.gate.wg", spec.hidden_size, spec.num_experts, dtype=dtypes.float32)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight = getattr(self.wg, "weight", None)  # none where it is quantized
        wide = to(hidden, dtypes.float32) if weight is not None and weight.dtype == dtypes.float32 else hidden
        logits = self.wg(wide)
        weights = softmax(logits, dtypes.float32)
        weights, chosen = topk(weights, self.top_k)
        weights = div_(weights, sum_dim(weights, -1, keepdim=True))
        return logits, to(weights, logits.dtype), chosen


class Moe:
    def __init__(self, spec: HunyuanMoeSpec, build: Builder):
        self.gate = Gate(spec, build)
        self.experts = Experts(spec, build)
        self.shared_mlp = GatedMLP(spec, build, "mlp.shared_mlp")

    def __call__(self, hidden: Tensor) -> Tensor:
        shared = self.shared_mlp(hidden)
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits, weights, chosen = self.gate(flat)
        out = reshape(self.experts(flat, chosen, weights), hidden.shape)
        out = add(out, shared)
        del logits
        return out


def hunyuan_moe(spec: HunyuanMoeSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(_: None) -> PreNorm:
        return PreNorm(spec, build, self_attention(spec, build, spec.attention_bias), Moe(spec, build))

    return Decoder(spec, build, layer)


HEADS = decoder_heads(hunyuan_moe)
