"""Cohere 2 with experts (North Mini Code, Command A+): its layers, with experts beside shared ones behind some dense layers.

After transformers' modeling_cohere2_moe.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cohere import LayerNorm, rotate_pairs
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import MakeNorm, Parallel
from estimator.families.experts import AUXILIARY, EXPERTS_HELD_IN, Experts, MoeSpec, entered
from estimator.families.feed_forward import GatedMLP
from estimator.families.granite import ScaledLM
from estimator.families.grouped_query import GroupedQueryAttention, normed_between
from estimator.families.heads import Head
from estimator.families.modules import Module
from estimator.families.rotations import unrotated
from estimator.families.spec import Size
from estimator.families.windows import SLIDING, LayerType, WindowedSpec
from estimator.tape import dtypes
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, div, mul_scalar, sigmoid, softmax, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape


class Cohere2MoeSpec(WindowedSpec, MoeSpec):
    """The first `first_k_dense_replace` layers have no experts, and a period of their own.

    `rms_norm_eps`: where there is one, norms are RMS norms. `expert_selection_fn`: what makes the best scores weights.
    """

    can = Abilities(gguf=True, graph="cohere2-moe", routing="plain sigmoid")
    held_in = EXPERTS_HELD_IN
    modelled = {**AUXILIARY, "use_parallel_block": (True,), "use_qk_norm": (False, None), "use_gated_activation": (True,)}
    default_period = 4

    max_position_embeddings: Size | None = 8192
    tie_word_embeddings: bool = True
    head_dim: Size = 128
    attention_bias: bool = False
    sliding_window_pattern: Size = 4
    num_experts: Size = 8
    num_experts_per_tok: Size = 2
    num_shared_experts: Annotated[int, Field(ge=0, le=2**12)] = 0
    shared_expert_combination_strategy: Literal["average", "sum"] = "average"
    expert_selection_fn: Literal["softmax", "sigmoid"] = "softmax"
    norm_topk_prob: bool = True
    first_k_dense_replace: Annotated[int, Field(ge=0, le=2**12)] = 0
    prefix_dense_sliding_window_pattern: Size = 1
    prefix_dense_intermediate_size: Size | None = None
    mlp_layer_types: tuple[Literal["dense", "sparse"], ...] | None = None
    rms_norm_eps: float | None = None

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": heads}

    @property
    def kinds(self) -> tuple[LayerType, ...]:
        if self.layer_types:
            return self.layer_types
        dense = min(self.first_k_dense_replace, self.num_hidden_layers)
        own = self.types(dense, self.prefix_dense_sliding_window_pattern)
        return own + self.types(self.num_hidden_layers - dense, self.sliding_window_pattern)

    def sparse(self) -> list[bool]:
        if self.mlp_layer_types:
            return [kind == "sparse" for kind in self.mlp_layer_types]
        return [i >= self.first_k_dense_replace for i in range(self.num_hidden_layers)]

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, given: Any) -> Any:
        """Types that follow from the periods and the number of dense layers need not be said."""
        if not isinstance(given, Mapping):
            return given
        said, layers = dict(given), given.get("num_hidden_layers")
        types = said.get("mlp_layer_types")
        if isinstance(types, list | tuple) and len(types) == layers:
            dense = list(types).count("dense")
            if list(types) == ["dense"] * dense + ["sparse"] * (layers - dense):
                del said["mlp_layer_types"]
                said["first_k_dense_replace"] = dense
        dense, own = said.get("first_k_dense_replace", 0), said.get("prefix_dense_sliding_window_pattern", 1)
        period, listed = said.get("sliding_window_pattern", cls.default_period), said.get("layer_types")
        counted = [isinstance(each, int) and 0 <= each <= 2**12 for each in (layers, dense, own, period)]
        if isinstance(listed, list | tuple) and all(counted) and own and period and dense <= len(listed) == layers:
            usual = [*cls.types(dense, own), *cls.types(layers - dense, period)]
            said["layer_types"] = None if list(listed) == usual else listed
        return said

    @model_validator(mode="after")
    def _types_of_each(self) -> Self:
        if len(self.sparse()) != self.num_hidden_layers:
            raise ValueError(f"mlp_layer_types names {len(self.sparse())} layers, num_hidden_layers is {self.num_hidden_layers}")
        return self

    def config(self) -> dict[str, Any]:
        return super().config() | {"mlp_layer_types": ["sparse" if sparse else "dense" for sparse in self.sparse()]}


SPECS = {"cohere2_moe": Cohere2MoeSpec}


class Router:
    """The best experts by their scores, of which then come weights."""

    def __init__(self, spec: Cohere2MoeSpec, build: Builder):
        self.spec = spec
        self.weight = build.weight("mlp.gate.weight", (spec.num_experts, spec.hidden_size))

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            logits = linear(hidden, self.weight())
            weights, chosen = topk(logits, self.spec.num_experts_per_tok)
            if self.spec.expert_selection_fn == "softmax":
                weights = softmax(weights, dtypes.float32)
            else:
                weights = sigmoid(weights)
                if self.spec.norm_topk_prob:
                    weights = div(weights, sum_dim(weights, -1, keepdim=True))
            weights = to(weights, hidden.dtype)
            return logits, weights, chosen


class Moe:
    """Experts, and shared ones, which are one feed-forward layer, whose sum may be halved."""

    def __init__(self, spec: Cohere2MoeSpec, build: Builder):
        self.gate = Router(spec, build)
        self.experts = Experts(spec, build)
        self.shared_experts: Module | None = None
        self.halved = spec.shared_expert_combination_strategy == "average"
        if spec.num_shared_experts:
            width = spec.intermediate_size * spec.num_shared_experts
            self.shared_experts = GatedMLP(spec, build, "mlp.shared_experts", width)

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits, weights, chosen = self.gate(flat)
        out = self.experts(flat, chosen, weights)
        if self.shared_experts is not None:
            shared = self.shared_experts(flat)
            out = mul_scalar(add(out, shared)) if self.halved else add(out, shared)
        del logits
        return reshape(out, hidden.shape)


def _layer_norm(build: Builder, name: str, size: int) -> LayerNorm:
    return LayerNorm(build, name, (size,))


def cohere2_moe(spec: Cohere2MoeSpec, build: Builder) -> Decoder:
    """The body of the model. Layers that see everything have no positions, but for dense ones that all do."""
    norm: MakeNorm = partial(_layer_norm, build) if spec.rms_norm_eps is None else build.rms_norm

    def layer(kind: tuple[LayerType, bool]) -> Parallel:
        sees, sparse = kind
        bias, forced = spec.attention_bias, not sparse and spec.prefix_dense_sliding_window_pattern == 1
        rotate = rotate_pairs if sees == SLIDING or forced else unrotated
        attention = GroupedQueryAttention(spec, build, bias, bias, project=normed_between, rotate=rotate)
        mlp: Module = Moe(spec, build) if sparse else GatedMLP(spec, build, width=spec.prefix_dense_intermediate_size)
        return Parallel(spec, build, attention, mlp, norm)

    kinds = list(zip(spec.kinds, spec.sparse(), strict=True))
    return Decoder(spec, build, layer, kinds, norm=norm, sees=lambda kind: kind[0])


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: ScaledLM(cohere2_moe(spec, build), spec, build)}
