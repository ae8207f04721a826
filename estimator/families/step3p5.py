"""Step 3.5's language model: layers with a window have heads of queries of their own number; each head is gated, and experts lie
beside one for every token. Only counted: transformers' experts run in a loop over those that were hit, which is data.

After transformers' modeling_step3p7.py (5.23), `Step3p7TextModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from estimator.families.build import Builder
from estimator.families.counted import counted, stack
from estimator.families.experts import Experts, LayersOfTypesSpec
from estimator.families.feed_forward import GatedMLP
from estimator.families.gemma import RMSNorm
from estimator.families.rotary import frequencies
from estimator.families.spec import Size, called
from estimator.families.windows import SLIDING, LayerType, WindowedSpec
from estimator.tape.tensor import Tensor

NAMES = {
    "num_attention_groups": "num_key_value_heads",
    "moe_num_experts": "n_routed_experts",
    "num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "share_expert_dims": "share_expert_dim",
}
"""What published configurations call some settings (`Step3p7TextConfig.attribute_map`)."""
EACH = ("layer_types", "mlp_layer_types", "partial_rotary_factors")
"""Settings of each layer, in which published configurations have those that predict further tokens, too."""


class Step3p5Spec(WindowedSpec, LayersOfTypesSpec):
    """`num_sliding_attention_heads`: heads of queries in layers with a window. `partial_rotary_factors`: how much of a head each
    layer rotates."""

    runs = False
    parts_in_sglang = True
    window_pool = "0.5.9"
    default_period = 1

    max_position_embeddings: Size | None = 128000
    num_key_value_heads: Size = 8
    head_dim: Size = 128
    sliding_window: Size | None = None  # type: ignore[assignment]
    num_sliding_attention_heads: Size | None = None
    num_experts: Size = called("n_routed_experts", 288)
    num_experts_per_tok: Size = 8
    moe_intermediate_size: Size = 1280
    share_expert_dim: Size = 1280
    first_k_dense_replace: int = 3
    partial_rotary_factors: tuple[Annotated[float, Field(gt=0, le=1)], ...] | None = None
    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {}

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | NAMES.keys() | {"attention_other_setting", "moe_layers_enum", "num_nextn_predict_layers"}

    @model_validator(mode="before")
    @classmethod
    def _published(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        said = {NAMES.get(name, name): value for name, value in given.items()}
        layers, more = said.get("num_hidden_layers"), said.pop("num_nextn_predict_layers", 0)
        others, sparse = said.pop("attention_other_setting", None), said.pop("moe_layers_enum", None)
        if isinstance(layers, int) and isinstance(more, int):
            for name in EACH:
                if isinstance(said.get(name), list | tuple) and len(said[name]) == layers + more:
                    said[name] = said[name][:layers]
        if isinstance(others, Mapping) and said.get("num_sliding_attention_heads") is None:
            said["num_sliding_attention_heads"] = others.get("num_attention_heads")
        if sparse is not None and isinstance(layers, int) and said.get("mlp_layer_types") is None:
            places = {int(place) for place in (sparse.split(",") if isinstance(sparse, str) else sparse) if str(place).strip()}
            said["mlp_layer_types"] = ["sparse" if i in places else "dense" for i in range(layers)]
        return said

    def heads(self, kind: LayerType) -> int:
        """Heads of queries in a layer of a kind."""
        return (self.num_sliding_attention_heads or self.num_attention_heads) if kind == SLIDING else self.num_attention_heads

    def rotated(self, kind: LayerType) -> int:
        """Elements of each head that layers of a kind rotate: as the first of them says."""
        factors = self.partial_rotary_factors
        return int(self.head_dim * (factors[self.kinds.index(kind)] if factors else 1.0))

    @model_validator(mode="after")
    def _of_each_layer(self) -> Self:
        if self.partial_rotary_factors is not None and len(self.partial_rotary_factors) != self.num_hidden_layers:
            raise ValueError(
                f"partial_rotary_factors has {len(self.partial_rotary_factors)} entries for {self.num_hidden_layers} layers"
            )
        if (heads := self.heads(SLIDING)) % self.num_key_value_heads:
            raise ValueError(f"num_sliding_attention_heads {heads} is no multiple of {self.num_key_value_heads} key heads")
        if SLIDING in self.kinds and self.sliding_window is None:
            raise ValueError("layer_types names layers with a window, and sliding_window says none")
        return self


SPECS = {"step3p5": Step3p5Spec}


def causal_lm(spec: Step3p5Spec, build: Builder) -> list[Tensor]:
    """Declares the language model's parameters; its buffers."""
    build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
    stack(build, list(zip(spec.kinds, spec.sparse(), strict=True)), lambda kind: _layer(spec, build, *kind))
    RMSNorm(build, "norm", spec.hidden_size)
    build.head(spec.hidden_size, spec.vocab_size, spec.tie_word_embeddings)
    return [table for kind in dict.fromkeys(spec.kinds) for table in frequencies(build, spec.rotated(kind))]


def _layer(spec: Step3p5Spec, build: Builder, kind: LayerType, sparse: bool) -> None:
    size, bias = spec.hidden_size, spec.attention_bias
    queries, keys = spec.heads(kind) * spec.head_dim, spec.num_key_value_heads * spec.head_dim
    for name, width in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        build.linear(f"self_attn.{name}", size, width, bias)
    build.linear("self_attn.o_proj", queries, size, bias)
    for name in ("q_norm", "k_norm"):
        RMSNorm(build, f"self_attn.{name}", spec.head_dim)
    build.linear("self_attn.g_proj", size, spec.heads(kind))
    if sparse:
        build.weight("mlp.gate.weight", (spec.num_experts, size))
        build.buffer("mlp.gate.e_score_correction_bias", (spec.num_experts,), build.dtype)
        Experts(spec, build)
        GatedMLP(spec, build, "mlp.shared_experts", spec.share_expert_dim, spec.mlp_bias)
    else:
        GatedMLP(spec, build, bias=spec.mlp_bias)
    for name in ("input_layernorm", "post_attention_layernorm"):
        RMSNorm(build, name, size)


HEADS = {"causal-lm": counted(causal_lm)}
