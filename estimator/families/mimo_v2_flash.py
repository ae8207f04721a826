"""MiMo-V2-Flash: most layers look back a short window, with sinks and twice the key heads; values have smaller heads than keys,
and are scaled; DeepSeek-V3's experts without shared ones. Attention by hand only.

After transformers' modeling_mimo_v2_flash.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from estimator.families.abilities import Abilities
from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.experts import AUXILIARY, Experts, LayersOfTypesSpec
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import language_model
from estimator.families.modules import rotate_part
from estimator.families.rotary import PartialRotarySpec
from estimator.families.routers import DeepseekV3Router
from estimator.families.spec import DecoderSpec, Size, called
from estimator.families.windows import FULL, SLIDING, LayerType, WindowedSpec
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.math_attention import repeat_heads
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, dropout, mul_scalar, softmax, sub, to
from estimator.tape.selection import max_last
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, contiguous, expand, narrow, reshape, transpose

FIRST, PERIOD = 0, 6
"""The first layer and each sixth see everything (`MiMoV2FlashConfig.__post_init__`)."""


class MimoV2FlashSpec(WindowedSpec, PartialRotarySpec, LayersOfTypesSpec):
    """`sliding_window` counts the token itself; published configurations say in `sliding_window_size` how many come before it,
    and in lists of zeros and ones which layers have windows and experts."""

    parts_in_sglang = True
    float32_router = True
    can = Abilities(gguf=True, graph="mimo-2", routing="sigmoid", mlx_routers="whole")
    attentions = ("eager",)
    window_pool = "0.5.7"
    modelled = {
        **AUXILIARY,
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "add_swa_attention_sink_bias": (True,),
        "add_full_attention_sink_bias": (False,),
    }
    default_period = PERIOD

    max_position_embeddings: Size | None = 131072
    num_key_value_heads: Size = 4
    head_dim: Size = 192
    v_head_dim: Size = 128
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 0.334
    sliding_window: Size = 129
    attention_bias: bool = False
    num_experts: Size = called("n_routed_experts", 256)
    num_experts_per_tok: Size = 8
    moe_intermediate_size: Size = 2048
    n_shared_experts: None = None  # type: ignore[assignment]
    first_k_dense_replace: int = 1
    n_group: Size = 1
    topk_group: Size = 1
    norm_topk_prob: bool = True

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {}

    @classmethod
    def types(cls, layers: int, period: int) -> tuple[LayerType, ...]:
        return tuple([FULL if i == FIRST or (i + 1) % period == 0 else SLIDING for i in range(layers)])

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"sliding_window_size", "hybrid_layer_pattern", "moe_layer_freq"}

    @model_validator(mode="before")
    @classmethod
    def _published(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        said = dict(given)
        before = said.pop("sliding_window_size", None)
        if isinstance(before, int):
            said["sliding_window"] = before + 1
        for name, field, words in (
            ("hybrid_layer_pattern", "layer_types", (FULL, SLIDING)),
            ("moe_layer_freq", "mlp_layer_types", ("dense", "sparse")),
        ):
            marks = said.pop(name, None)
            if isinstance(marks, list | tuple) and said.get(field) is None:
                said[field] = [words[bool(mark)] for mark in marks]
        return said

    @property
    def cached_per_token(self) -> int | None:
        return sum(layer.heads * (layer.key_size + layer.value_size) for layer in self.cache_layers)

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        """Engines take a window for as many tokens as come before one here (vllm/model_executor/models/mimo_v2_flash.py)."""
        window = max(1, self.sliding_window - 1)
        return tuple(
            [
                CacheLayer("window", self.key_heads(kind), self.head_dim, self.v_head_dim, window)
                if kind == SLIDING
                else CacheLayer("full", self.key_heads(kind), self.head_dim, self.v_head_dim)
                for kind in self.kinds
            ]
        )

    def key_heads(self, kind: LayerType) -> int:
        """Heads of keys and values in a layer of a kind."""
        return self.num_key_value_heads * (2 if kind == SLIDING else 1)

    def config(self) -> dict[str, Any]:
        rope = {"rope_type": "default", "partial_rotary_factor": self.partial_rotary_factor}
        thetas = {FULL: 5_000_000.0, SLIDING: 10_000.0}
        return super().config() | {"rope_parameters": {kind: {**rope, "rope_theta": theta} for kind, theta in thetas.items()}}

    @model_validator(mode="after")
    def _twice_the_heads(self) -> Self:
        if self.rotary_size % 2 or not self.rotary_size:
            raise ValueError(f"{self.rotary_size} elements of each head are rotated: rotary embeddings need pairs")
        if SLIDING in self.kinds and self.num_attention_heads % (2 * self.num_key_value_heads):
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is no multiple of the {2 * self.num_key_value_heads} key heads "
                "that layers with a window have, twice num_key_value_heads"
            )
        return self


SPECS = {"mimo_v2_flash": MimoV2FlashSpec}


class AttentionWithSinks:
    """Attention by hand; where there are sinks each head has one score more, which takes its share and is dropped."""

    def __init__(self, sinks: Tensor | None, dropout: float):
        self.sinks, self.dropout = sinks, dropout

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        keys, values = repeat_heads(q, k), repeat_heads(q, v)
        weights = mul_scalar(matmul(q, transpose(keys, 2, 3)))
        if mask is not None:
            weights = add(weights, mask)
        batch, heads, tokens, length = weights.shape
        if self.sinks is not None:
            sinks = expand(reshape(self.sinks, (1, -1, 1, 1)), (batch, heads, tokens, 1))
            weights = cat((weights, sinks), 3)
        weights = sub(weights, max_last(weights, keepdim=True)[0])
        probabilities = softmax(weights, weights.dtype)
        if self.sinks is not None:
            probabilities = narrow(probabilities, 3, length)
        weights = to(dropout(probabilities, self.dropout), values.dtype)
        out = matmul(weights, values)
        out = contiguous(transpose(out, 1, 2))
        return out, weights


def _project(module: GroupedQueryAttention, hidden: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    """Values have heads of their own size, and are scaled."""
    assert isinstance(module, MimoAttention)
    q = transpose(reshape(module.q_proj(hidden), heads), 1, 2)
    k = transpose(reshape(module.k_proj(hidden), heads), 1, 2)
    return q, k, mul_scalar(transpose(reshape(module.v_proj(hidden), (*heads[:-1], module.value_size)), 1, 2))


class MimoAttention(GroupedQueryAttention):
    def __init__(self, spec: MimoV2FlashSpec, build: Builder, kind: LayerType):
        self.kind, self.value_size = kind, spec.v_head_dim
        sinks = build.parameter("self_attn.sinks", (spec.num_attention_heads,)) if kind == SLIDING else None
        super().__init__(spec, build, spec.attention_bias, project=_project, rotate=rotate_part)
        self.attend: Any = AttentionWithSinks(sinks, spec.attention_dropout if build.training else 0.0)

    def make_projections(self, spec: DecoderSpec, build: Builder, bias: bool, output_bias: bool, output: str) -> None:
        assert isinstance(spec, MimoV2FlashSpec)
        hidden, heads, keys = spec.hidden_size, spec.num_attention_heads, spec.key_heads(self.kind)
        self.q_proj = build.linear("self_attn.q_proj", hidden, heads * spec.head_dim, bias)
        self.k_proj = build.linear("self_attn.k_proj", hidden, keys * spec.head_dim, bias)
        self.v_proj = build.linear("self_attn.v_proj", hidden, keys * spec.v_head_dim, bias)
        self.o_proj = build.linear(f"self_attn.{output}", heads * spec.v_head_dim, hidden, output_bias)


class MimoMoe:
    """DeepSeek-V3's routed experts alone."""

    def __init__(self, spec: MimoV2FlashSpec, build: Builder):
        self.experts = Experts(spec, build)
        self.gate = DeepseekV3Router(spec, build)

    def __call__(self, hidden: Tensor) -> Tensor:
        logits, weights, chosen = self.gate(hidden)
        out = reshape(self.experts(reshape(hidden, (-1, hidden.shape[-1])), chosen, weights), hidden.shape)
        del logits
        return out


def _masks(
    spec: DecoderSpec, tape: Tape, batch: int, tokens: int, dtype: DType, implementation: str
) -> dict[LayerType, Tensor | None]:
    """One for each kind of layers that there are."""
    assert isinstance(spec, MimoV2FlashSpec)
    return {
        kind: causal_mask(tape, batch, tokens, dtype, implementation, spec.sliding_window if kind == SLIDING else None)
        for kind in dict.fromkeys(spec.kinds)
    }


def mimo_v2_flash(spec: MimoV2FlashSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(kind: tuple[LayerType, bool]) -> PreNorm:
        sees, sparse = kind
        return PreNorm(spec, build, MimoAttention(spec, build, sees), MimoMoe(spec, build) if sparse else GatedMLP(spec, build))

    kinds = list(zip(spec.kinds, spec.sparse(), strict=True))
    rotary = Rotary(spec.rotary_size, kinds=spec.kinds)
    return Decoder(spec, build, layer, kinds, rotary=rotary, masks=_masks, sees=lambda kind: kind[0])


HEADS = language_model(mimo_v2_flash)
