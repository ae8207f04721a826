"""Mixtures of experts: routing each token to a few of many feed-forward layers.

After transformers' integrations/moe.py (5.23), `grouped_mm_experts_forward`, the implementation that every mixture gets unless
its config names another (`get_correct_experts_implementation`, modeling_utils.py). Which expert gets how many tokens is not known
and does not matter: all of them together get `num_experts_per_tok` rows per token, sorted by expert.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.families.build import Builder
from estimator.families.each_layer import check_each_named
from estimator.families.modules import ACTIVATIONS
from estimator.families.parameter import Weight
from estimator.families.spec import DecoderSpec, Size, called
from estimator.tape import dtypes
from estimator.tape.grouped import grouped_linear
from estimator.tape.pointwise import add_, mul, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import sort
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import index, reshape, split, unsqueeze

AUXILIARY = {"output_router_logits": (False, None)}
"""The loss that balances experts is computed only where the config has the routers' scores returned; none does by default."""
EXPERTS_HELD_IN = {
    "gate": "gate.weight",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "down_proj": "down_proj",
}
"""`held_in` of most mixtures (peft's `_MOE_TARGET_MODULE_MAPPING`; which model is like which: transformers'
`_MODEL_TO_CONVERSION_PATTERN`, in which qwen2_moe is like none)."""


class MoeSpec(DecoderSpec):
    """What mixtures of experts have in common."""

    num_experts: Size
    num_experts_per_tok: Size

    @property
    def expert_size(self) -> int:
        """Width of one expert."""
        return self.intermediate_size

    def sparse(self) -> list[bool]:
        """Whether each layer has experts."""
        return [True] * self.num_hidden_layers

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(f"num_experts_per_tok {self.num_experts_per_tok} is more than the {self.num_experts} experts")
        return self


class SharedExpertsSpec(MoeSpec):
    """DeepSeek's kind: narrow experts beside shared ones, which every token passes, behind some dense layers."""

    num_experts: Size = called("n_routed_experts")
    moe_intermediate_size: Size
    n_shared_experts: Size = 1
    first_k_dense_replace: int = 0

    @property
    def expert_size(self) -> int:
        return self.moe_intermediate_size

    def sparse(self) -> list[bool]:
        return [i >= self.first_k_dense_replace for i in range(self.num_hidden_layers)]


class GroupedExpertsSpec(SharedExpertsSpec):
    """With DeepSeek-V3's router, which takes experts of the best groups only; most models have one group."""

    held_in = EXPERTS_HELD_IN
    modelled = {**AUXILIARY, "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",), "moe_layer_freq": (1,)}

    n_group: Size = 1
    topk_group: Size = 1
    norm_topk_prob: bool = True

    @model_validator(mode="after")
    def _groups(self) -> Self:
        if self.n_group and self.num_experts % self.n_group:
            raise ValueError(f"{self.num_experts} experts cannot be divided into n_group {self.n_group} equal groups")
        return self


class LayersOfTypesSpec(SharedExpertsSpec):
    """`mlp_layer_types` says what each layer has; that the first few are dense can be said by their number instead."""

    mlp_layer_types: tuple[Literal["dense", "sparse"], ...] | None = None

    def sparse(self) -> list[bool]:
        return [kind == "sparse" for kind in self.mlp_layer_types] if self.mlp_layer_types else super().sparse()

    @model_validator(mode="before")
    @classmethod
    def _first_dense(cls, given: Any) -> Any:
        """Types of which only the first few are dense are said by their number, and then follow the number of layers."""
        if not isinstance(given, Mapping) or not isinstance(given.get("mlp_layer_types"), list | tuple):
            return given
        types = list(given["mlp_layer_types"])
        dense = types.count("dense")
        if types != ["dense"] * dense + ["sparse"] * (len(types) - dense) or len(types) != given.get("num_hidden_layers"):
            return given
        return {name: value for name, value in given.items() if name != "mlp_layer_types"} | {"first_k_dense_replace": dense}

    @model_validator(mode="after")
    def _each_layer(self) -> Self:
        check_each_named(self.mlp_layer_types, self.num_hidden_layers, "mlp_layer_types")
        return self

    def config(self) -> dict[str, Any]:
        types = ["sparse" if sparse else "dense" for sparse in self.sparse()]
        return super().config() | {"mlp_layer_types": types}


@contextmanager
def entered(*weights: Weight) -> Iterator[None]:
    """A module runs: its adapters begin, from the outermost on, and end."""
    for weight in weights:
        weight.enter()
    try:
        yield
    finally:
        for weight in reversed(weights):
            weight.leave()


class Experts:
    """The experts of a layer: their weights are 3-D parameters, [experts, 2 width, hidden] and [experts, hidden, width]."""

    transposed = False

    def __init__(self, spec: Any, build: Builder, name: str = "mlp.experts"):
        experts, used = spec.num_experts, spec.num_experts_per_tok
        hidden, width = spec.hidden_size, spec.expert_size
        up, down = (experts, 2 * width, hidden), (experts, hidden, width)
        if self.transposed:
            up, down = (experts, hidden, 2 * width), (experts, width, hidden)
        self.num_experts = experts
        self.gate_up_proj = build.weight(name + ".gate_up_proj", up, used)
        self.gate_up_bias = self.bias(build, name + ".gate_up_proj_bias", (experts, 2 * width), used)
        self.down_proj = build.weight(name + ".down_proj", down, used)
        self.down_bias = self.bias(build, name + ".down_proj_bias", (experts, hidden), used)
        self.act = ACTIVATIONS[spec.hidden_act]

    def bias(self, build: Builder, name: str, shape: tuple[int, int], used: int) -> Tensor | None:
        """A bias for each expert; these have none."""
        return None

    def gate(self, gate_up: Tensor) -> Tensor:
        """activation(gate) * up."""
        half = gate_up.shape[-1] // 2
        gate, up = split(gate_up, (half, half), 1)
        return mul(self.act(gate), up)

    def __call__(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        with entered(self.down_proj, self.gate_up_proj):
            return self._forward(hidden, chosen, weights)

    def _forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        tape, (tokens, size) = hidden.tape, hidden.shape
        rows = tokens * chosen.shape[1]
        sample_weights = reshape(weights, (-1,))
        expert_ids = reshape(chosen, (-1,))
        sorted_ids, order = sort(expert_ids)
        selected = _taken(hidden, empty(tape, (rows,), dtypes.int64, "floor_divide"))
        sorted_weights = _taken(sample_weights, order)
        counted = empty(tape, (rows,), dtypes.int32, "_to_copy")
        per_expert = empty(tape, (self.num_experts,), dtypes.int32, "histc")
        offsets = empty(tape, (self.num_experts,), dtypes.int32, "cumsum")
        weight = self.gate_up_proj()
        bias = None if self.gate_up_bias is None else _taken(self.gate_up_bias, sorted_ids)
        out = self._linear(selected, weight, offsets, bias)
        out = self.gate(out)
        weight = self.down_proj()
        bias = None if self.down_bias is None else _taken(self.down_bias, sorted_ids)
        out = self._linear(out, weight, offsets, bias)
        weighted = mul(out, unsqueeze(sorted_weights, 1))
        inverse = empty(tape, (rows,), dtypes.int64, "empty_like")
        places = empty(tape, (rows,), dtypes.int64, "arange")
        del places
        weighted = _taken(weighted, inverse)
        final = sum_dim(reshape(weighted, (tokens, -1, size)), 1)
        result = to(final, hidden.dtype)
        del counted, per_expert
        return result

    def _linear(self, x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None) -> Tensor:
        out = grouped_linear(x, weight, offsets, self.transposed)
        return out if bias is None else add_(out, bias)


def _taken(x: Tensor, places: Tensor) -> Tensor:
    """Rows of x, one per place."""
    return index(x, (places,), (*places.shape, *x.shape[1:]))
