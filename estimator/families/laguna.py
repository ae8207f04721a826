"""Laguna: gated attention, of whose heads a part is rotated where a layer sees everything; experts chosen by sigmoids.

After transformers' modeling_laguna.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from estimator.families.abilities import BATCHES, Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary, Table
from estimator.families.decoder_layers import PreNorm
from estimator.families.each_layer import check_each_named
from estimator.families.experts import AUXILIARY, Experts, LayersOfTypesSpec, entered
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention, normed_between
from estimator.families.heads import language_model
from estimator.families.modules import Module, rotary_table, rotate_part
from estimator.families.rotary import frequencies
from estimator.families.spec import Size
from estimator.families.windows import FULL, SLIDING, LayerType, WindowedSpec, masks_seen
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, div, mul, mul_scalar, sigmoid, softplus, tanh, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import gather, topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, unsqueeze

Part = Annotated[float, Field(gt=0, le=1)]
THETAS = {FULL: 500_000.0, SLIDING: 10_000.0}


class LagunaSpec(WindowedSpec, LayersOfTypesSpec):
    """`num_attention_heads_per_layer`: heads of queries in each layer. `gating`: whether each head has one gate, or each of its
    elements. A config.json says in `rope_parameters` which part of a head layers of each kind rotate."""

    can = Abilities(batches=BATCHES)
    modelled = {**AUXILIARY, "moe_apply_router_weight_on_input": (False,)}
    default_period = 1

    max_position_embeddings: Size | None = 131072
    sliding_window: Size = 512
    num_experts: Size = 256
    num_experts_per_tok: Size = 8
    moe_intermediate_size: Size = 512
    shared_expert_intermediate_size: Size = 512
    n_shared_experts: None = None  # type: ignore[assignment]
    first_k_dense_replace: int = 1
    attention_bias: bool = False
    gating: Literal[True, "per-head", "per-element"] = True
    num_attention_heads_per_layer: tuple[Size, ...] | None = None
    moe_router_logit_softcapping: Annotated[float, Field(ge=0)] = 0.0
    rotated_in_full: Part = 0.5
    rotated_in_window: Part = 1.0

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": 8, "head_dim": 128}

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"rope_parameters"}

    @model_validator(mode="before")
    @classmethod
    def _published(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        said = dict(given)
        rope = said.pop("rope_parameters", None)
        if isinstance(rope, Mapping):
            for kind, field in ((FULL, "rotated_in_full"), (SLIDING, "rotated_in_window")):
                if isinstance(rope.get(kind), Mapping):
                    said.setdefault(field, rope[kind].get("partial_rotary_factor", 1.0))
        each = said.get("num_attention_heads_per_layer")
        if isinstance(each, list | tuple) and {*map(str, each)} == {str(said.get("num_attention_heads"))}:
            del said["num_attention_heads_per_layer"]
        return said

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads of queries in each layer."""
        return self.num_attention_heads_per_layer or (self.num_attention_heads,) * self.num_hidden_layers

    def rotated(self, kind: LayerType) -> int:
        """Elements of each head that layers of a kind rotate."""
        return int(self.head_dim * (self.rotated_in_window if kind == SLIDING else self.rotated_in_full))

    @model_validator(mode="after")
    def _of_each_layer(self) -> Self:
        check_each_named(self.heads, self.num_hidden_layers, "num_attention_heads_per_layer")
        if any(heads % self.num_key_value_heads for heads in self.heads):
            raise ValueError(
                f"num_attention_heads_per_layer has no multiple of {self.num_key_value_heads} key heads in each layer"
            )
        if any(self.rotated(kind) % 2 or not self.rotated(kind) for kind in self.kinds):
            raise ValueError("rope_parameters rotates an odd number of elements of each head: rotary embeddings need pairs")
        return self

    def config(self) -> dict[str, Any]:
        fields = super().config()
        parts = {FULL: fields.pop("rotated_in_full"), SLIDING: fields.pop("rotated_in_window")}
        rope = {
            kind: {"rope_type": "default", "rope_theta": THETAS[kind], "partial_rotary_factor": part}
            for kind, part in parts.items()
        }
        return fields | {"num_attention_heads_per_layer": [*self.heads], "rope_parameters": rope}


SPECS = {"laguna": LagunaSpec}


class GatedAttention(GroupedQueryAttention):
    """What the heads give is multiplied by a softplus, in float32, of another projection: a number for each head or element."""

    def __init__(self, spec: LagunaSpec, build: Builder, heads: int):
        def norm(which: str, _: int) -> Module:
            return build.rms_norm(f"self_attn.{which}_norm", spec.head_dim)

        own, bias = spec.model_copy(update={"num_attention_heads": heads}), spec.attention_bias
        super().__init__(own, build, bias, bias, norm=norm, project=normed_between, rotate=rotate_part)
        self.per_head = spec.gating != "per-element"
        self.g_proj = build.linear("self_attn.g_proj", spec.hidden_size, heads if self.per_head else heads * spec.head_dim)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        q, k, v = self.project(self, hidden, (batch, tokens, -1, self.head_dim))
        q, k, *_ = self.rotate(q, k, cos, sin)
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, (batch, tokens, -1))
        gate = to(softplus(to(self.g_proj(hidden), dtypes.float32)), out.dtype)
        if self.per_head:
            out = reshape(mul(reshape(out, (batch, tokens, -1, self.head_dim)), unsqueeze(gate, 3)), (batch, tokens, -1))
        else:
            out = mul(out, gate)
        return self.o_proj(out), weights


class Router:
    """The best experts by a sigmoid of their scores in float32, which may go through a tanh, and a bias that is not trained."""

    def __init__(self, spec: LagunaSpec, build: Builder):
        self.top_k, self.capped = spec.num_experts_per_tok, spec.moe_router_logit_softcapping > 0
        self.weight = build.weight("mlp.gate.weight", (spec.num_experts, spec.hidden_size))
        self.bias = build.parameter("mlp.gate.e_score_correction_bias", (spec.num_experts,), trainable=False)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            logits = to(linear(hidden, self.weight()), dtypes.float32)
            if self.capped:
                logits = mul_scalar(tanh(mul_scalar(logits)))
            scores = sigmoid(logits)
            ranked = add(scores, to(self.bias, scores.dtype))
            best, chosen = topk(ranked, self.top_k)
            weights = gather(scores, chosen)
            weights = div(weights, sum_dim(weights, -1, keepdim=True))
            weights = to(weights, hidden.dtype)
            del best, ranked
            return logits, weights, chosen


class Moe:
    """Experts beside one that every token passes."""

    def __init__(self, spec: LagunaSpec, build: Builder):
        self.experts = Experts(spec, build)
        self.gate = Router(spec, build)
        self.shared_experts: Any = GatedMLP(spec, build, "mlp.shared_experts", spec.shared_expert_intermediate_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        shared = self.shared_experts(flat)
        logits, weights, chosen = self.gate(flat)
        out = self.experts(flat, chosen, weights)
        out = mul_scalar(out)
        out = add(out, shared)
        del logits
        return reshape(out, hidden.shape)


class RotaryOfKinds(Rotary):
    """A table for each kind of layer, of its own width."""

    def __init__(self, spec: LagunaSpec):
        super().__init__(spec.head_dim, kinds=spec.kinds)
        self.sizes = {kind: spec.rotated(kind) for kind in self.kinds}

    def buffers(self, build: Builder) -> list[Tensor]:
        return [t for size in self.sizes.values() for t in frequencies(build, size)]

    def tables(self, ids: Tensor, dtype: DType) -> dict[LayerType, Table]:
        return {kind: rotary_table(ids.tape, ids.shape[1], size, dtype) for kind, size in self.sizes.items()}


def laguna(spec: LagunaSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(kind: tuple[LayerType, bool, int]) -> PreNorm:
        _, sparse, heads = kind
        return PreNorm(spec, build, GatedAttention(spec, build, heads), Moe(spec, build) if sparse else GatedMLP(spec, build))

    kinds = list(zip(spec.kinds, spec.sparse(), spec.heads, strict=True))
    return Decoder(spec, build, layer, kinds, rotary=RotaryOfKinds(spec), masks=masks_seen, sees=lambda kind: kind[0])


HEADS = language_model(laguna)
