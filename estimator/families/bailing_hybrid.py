"""Ling 3.0: Kimi Delta Attention with a bounded forget gate, gated latent attention in every sixth layer, DeepSeek's experts.

After transformers' modeling_bailing_hybrid.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, delta_state
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import Alone, PreNorm
from estimator.families.deepseek import DeepseekMoe
from estimator.families.delta_latent import LINEAR, DeltaLatentSpec, Kind
from estimator.families.experts import GroupedExpertsSpec
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import language_model
from estimator.families.kimi_delta import KimiDeltaAttention, SigmoidRMSNorm
from estimator.families.latent import LatentAttention
from estimator.families.routers import DeepseekV3Router
from estimator.families.spec import Size, called
from estimator.families.windows import FULL, LayerType
from estimator.tape import dtypes
from estimator.tape.pointwise import add, exp, mul, mul_scalar, sigmoid, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, reshape, split, transpose, unsqueeze


class BailingHybridSpec(DeltaLatentSpec):
    """`linear_head_dim`: of delta attention, which configurations call `head_dim`."""

    modelled = GroupedExpertsSpec.modelled | {"kda_safe_gate": (True,), "q_lora_rank": (None,)}

    max_position_embeddings: Size | None = called("model_max_length", 262144)
    num_experts: Size = called("num_experts", 512)
    moe_intermediate_size: Size = 768
    first_k_dense_replace: int = 2
    n_group: Size = called("num_expert_group", 8)
    topk_group: Size = 4
    rope_interleave: bool = True
    linear_conv_kernel_dim: Size = called("short_conv_kernel_size", 4)
    layer_group_size: Size = 6

    @property
    def linear_num_heads(self) -> int:
        """Heads of delta attention: as many as latent attention has."""
        return self.num_attention_heads

    def attends(self, layer: int) -> bool:
        return (layer + 1) % self.layer_group_size == 0

    @property
    def state(self) -> CacheLayer:
        return delta_state(self.linear_num_heads, self.linear_head_dim, self.linear_conv_kernel_dim)

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"linear_num_heads", "qk_head_dim"}

    @model_validator(mode="before")
    @classmethod
    def _published(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        said = {name: value for name, value in given.items() if name not in ("linear_num_heads", "qk_head_dim", "head_dim")}
        if "short_conv_kernel_size" in said:
            said.pop("linear_conv_kernel_dim", None)
        if given.get("head_dim") is not None:
            said.setdefault("linear_head_dim", given["head_dim"])
        return said

    def config(self) -> dict[str, Any]:
        return super().config() | {"head_dim": self.linear_head_dim}


SPECS = {"bailing_hybrid": BailingHybridSpec}


class BoundedForgetGate:
    """The decay of each channel of each token, no further below zero than a bound: bound sigmoid(e^A (f + bias))."""

    def __init__(self, spec: BailingHybridSpec, build: Builder):
        self.heads, self.size = spec.linear_num_heads, spec.linear_head_dim
        channels = self.heads * self.size
        self.a_log = build.parameter("self_attn.forget_gate.A_log", (self.heads,), dtype=dtypes.float32)
        self.dt_bias = build.parameter("self_attn.forget_gate.dt_bias", (channels,), dtype=dtypes.float32)
        self.f_proj = build.linear("self_attn.forget_gate.f_proj", spec.hidden_size, channels)

    def __call__(self, hidden: Tensor) -> Tensor:
        batch, tokens, _ = hidden.shape
        gate_input = reshape(to(self.f_proj(hidden), dtypes.float32), (batch, tokens, self.heads, self.size))
        gate_input = add(gate_input, reshape(self.dt_bias, (1, 1, self.heads, self.size)))
        rate = reshape(exp(self.a_log), (1, 1, self.heads, 1))
        gate = mul_scalar(sigmoid(mul(rate, gate_input)))
        return to(gate, hidden.dtype)


class BailingDeltaAttention(KimiDeltaAttention):
    """With this model's forget gate, and an output gate of one layer."""

    def make_gates(self, spec: Any, build: Builder) -> None:
        self.forget_gate = BoundedForgetGate(spec, build)
        self.b_proj = build.linear("self_attn.b_proj", spec.hidden_size, spec.linear_num_heads)
        self.o_norm = SigmoidRMSNorm(build.parameter("self_attn.o_norm.weight", (self.size,)))
        self.o_proj = build.linear("self_attn.o_proj", self.channels, spec.hidden_size)
        self.g_proj = build.linear("self_attn.g_proj", spec.hidden_size, self.channels)

    def output_gate(self, hidden: Tensor) -> Tensor:
        return self.g_proj(hidden)


class GatedLatentAttention(LatentAttention):
    """What each head gives is multiplied by a sigmoid."""

    def __init__(self, spec: BailingHybridSpec, build: Builder):
        super().__init__(spec, build)
        self.g_proj = build.linear("self_attn.g_proj", spec.hidden_size, spec.num_attention_heads)

    def __call__(self, hidden: Tensor, *shared: Any) -> tuple[Tensor, Tensor | None]:
        rotary, mask = shared[:-1], shared[-1]
        spec, (batch, tokens, _) = self.spec, hidden.shape
        q = transpose(reshape(self.q_proj(hidden), (batch, tokens, -1, spec.qk_head_dim)), 1, 2)
        q_pass, q_rot = split(q, (spec.qk_nope_head_dim, spec.head_dim), 3)
        compressed = self.kv_a_proj(hidden)
        latent, k_rot = split(compressed, (spec.kv_lora_rank, spec.head_dim), 2)
        latent = reshape(self.kv_a_layernorm(latent), (batch, 1, tokens, spec.kv_lora_rank))
        k_rot = reshape(k_rot, (batch, 1, tokens, spec.head_dim))
        q_rot, k_rot = self.rotate(q_rot, k_rot, rotary)
        queries = cat((q_pass, q_rot), 3)
        keys, values = self.expand(latent, k_rot)
        out, weights = self.attend(queries, keys, values, mask)
        gate = to(sigmoid(to(self.g_proj(hidden), dtypes.float32)), hidden.dtype)
        out = mul(out, unsqueeze(gate, 3))
        out = reshape(out, (batch, tokens, -1))
        return self.o_proj(out), weights


def bailing_hybrid(spec: BailingHybridSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(kind: tuple[Kind, bool]) -> PreNorm:
        mixes, sparse = kind
        linear = mixes == LINEAR
        mixer: Any = Alone(BailingDeltaAttention(spec, build, dtypes.float32)) if linear else GatedLatentAttention(spec, build)
        return PreNorm(spec, build, mixer, DeepseekMoe(spec, build, DeepseekV3Router) if sparse else GatedMLP(spec, build))

    def sees(kind: tuple[Kind, bool]) -> LayerType | None:
        return None if kind[0] == LINEAR else FULL

    kinds = list(zip(spec.kinds, spec.sparse(), strict=True))
    return Decoder(spec, build, layer, kinds, rotary=Rotary(spec.head_dim), sees=sees)


HEADS = language_model(bailing_hybrid)
