"""MiniMax-M2: Mixtral's layers with norms over all queries and all keys, a part of each head rotated, and a router of sigmoids.

After transformers' modeling_minimax_m2.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.experts import AUXILIARY, Experts, MoeSpec, entered
from estimator.families.grouped_query import GroupedQueryAttention, normed_whole
from estimator.families.heads import language_model
from estimator.families.mixtral import MixtralMoe, MixtralSpec
from estimator.families.modules import Module, rotate_part
from estimator.families.rotary import PartialRotarySpec
from estimator.families.spec import Size, called
from estimator.tape import dtypes
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, div_, sigmoid, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import gather, topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape


class MiniMaxM2Spec(PartialRotarySpec, MoeSpec):
    """Published configurations say in `rotary_dim` how many elements of each head are rotated."""

    heads_normed_together = "reduced"
    parts_in_sglang = True
    float32_router = True
    can = Abilities(gguf=True, graph="minimax-m2", routing="sigmoid", mlx_routers="8 bits")
    held_in = MixtralSpec.held_in
    modelled = {**AUXILIARY, "router_jitter_noise": (0.0, 0, None), "qk_norm_type": ("per_layer",), "use_qk_norm": (True,)}

    max_position_embeddings: Size | None = 196608
    num_experts: Size = called("num_local_experts", 256)
    num_experts_per_tok: Size = 8

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"rotary_dim"}

    @model_validator(mode="before")
    @classmethod
    def _rotated(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "rotary_dim" not in given:
            return given
        size, heads, hidden = given["rotary_dim"], given.get("num_attention_heads"), given.get("hidden_size")
        whole = given.get("head_dim") or (hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else 0)
        rest = {name: value for name, value in given.items() if name != "rotary_dim"}
        if not (isinstance(size, int) and isinstance(whole, int) and 0 < size <= whole):
            raise ValueError(f"rotary_dim {size!r} is not a number of a head's {whole} elements")
        return {"partial_rotary_factor": size / whole, **rest}


SPECS = {"minimax_m2": MiniMaxM2Spec}


class Router:
    """The best experts by a sigmoid of their scores and a bias; their weights sum to one."""

    def __init__(self, spec: MiniMaxM2Spec, build: Builder):
        self.top_k = spec.num_experts_per_tok
        self.weight = build.weight("mlp.gate.weight", (spec.num_experts, spec.hidden_size))
        self.correction = build.buffer("mlp.e_score_correction_bias", (spec.num_experts,), build.dtype)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            weight = self.weight()
            logits = linear(to(reshape(hidden, (-1, hidden.shape[-1])), weight.dtype), weight)
            scores = sigmoid(to(logits, dtypes.float32))
            ranked = add(scores, self.correction)
            best, chosen = topk(ranked, self.top_k)
            weights = gather(scores, chosen)
            weights = div_(weights, sum_dim(weights, -1, keepdim=True))
            del best, ranked
            return logits, weights, chosen


class MiniMaxM2Moe(MixtralMoe):
    def __init__(self, spec: Any, build: Builder):
        self.gate: Any = Router(spec, build)
        self.experts = Experts(spec, build)


def minimax_m2(spec: MiniMaxM2Spec, build: Builder) -> Decoder:
    """The body of the model."""

    def norm(which: str, heads: int) -> Module:
        return build.rms_norm(f"self_attn.{which}_norm", heads * spec.head_dim)

    def layer(_: None) -> PreNorm:
        attention = GroupedQueryAttention(spec, build, norm=norm, project=normed_whole, rotate=rotate_part)
        return PreNorm(spec, build, attention, MiniMaxM2Moe(spec, build))

    return Decoder(spec, build, layer, rotary=Rotary(spec.rotary_size))


HEADS = language_model(minimax_m2)
