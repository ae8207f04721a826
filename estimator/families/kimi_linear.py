"""Kimi Linear: Kimi Delta Attention, with latent attention without positions in every fourth layer, before DeepSeek's experts.

After transformers' modeling_kimi_linear.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, delta_state
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import Alone, PreNorm
from estimator.families.deepseek import DeepseekMoe
from estimator.families.delta_latent import ATTENTION, LINEAR, DeltaLatentSpec, Kind
from estimator.families.experts import GroupedExpertsSpec
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import language_model
from estimator.families.hybrid import Unrotated
from estimator.families.kimi_delta import KimiDeltaAttention
from estimator.families.latent import LatentAttention
from estimator.families.routers import DeepseekV3Router
from estimator.families.spec import Size, called
from estimator.families.windows import FULL, LayerType
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, split, transpose

NAMES = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads", "short_conv_kernel_size": "linear_conv_kernel_dim"}
"""What published configurations call some settings in `linear_attn_config`."""


class KimiLinearSpec(DeltaLatentSpec):
    """Every fourth layer attends, but the first, unless `layer_types` says which do; published configurations count layers from
    one, in `linear_attn_config`."""

    unrotated = True
    can = Abilities(gguf=True, graph="kimi-linear", routing="sigmoid", mlx_routers="8 bits")
    modelled = GroupedExpertsSpec.modelled | {"mla_use_nope": (True,), "moe_router_activation_func": ("sigmoid",)}

    max_position_embeddings: Size | None = called("model_max_length", 1048576)
    num_experts: Size = called("num_experts", 256)
    moe_intermediate_size: Size = 1024
    first_k_dense_replace: int = 1
    n_group: Size = called("num_expert_group", 1)
    topk_group: Size = 1
    linear_num_heads: Size = 32
    linear_conv_kernel_dim: Size = 4

    def attends(self, layer: int) -> bool:
        return layer > 0 and layer % 4 == 0

    @property
    def state(self) -> CacheLayer:
        return delta_state(self.linear_num_heads, self.linear_head_dim, self.linear_conv_kernel_dim)

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"linear_attn_config", "qk_head_dim"}

    @model_validator(mode="before")
    @classmethod
    def _published(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        said = {name: value for name, value in given.items() if name != "qk_head_dim"}
        if "qk_rope_head_dim" in said:
            said.pop("head_dim", None)  # which the class of the configuration overwrites, too
        inner = said.pop("linear_attn_config", None)
        if not isinstance(inner, Mapping):
            return said
        said |= {name: inner[key] for key, name in NAMES.items() if key in inner}
        layers, attends = said.get("num_hidden_layers"), inner.get("full_attn_layers")
        if said.get("layer_types") is None and isinstance(layers, int) and isinstance(attends, list | tuple):
            said["layer_types"] = [ATTENTION if i + 1 in attends else LINEAR for i in range(layers)]
        return said


SPECS = {"kimi_linear": KimiLinearSpec}


class Router(DeepseekV3Router):
    """DeepSeek-V3's, whose bias has the model's type."""

    kept_wide = False


class UnrotatedLatentAttention(LatentAttention):
    """Without positions: nothing is rotated, and queries stay whole."""

    def __call__(self, hidden: Tensor, *shared: Any) -> tuple[Tensor, Tensor | None]:
        (mask,) = shared
        spec, (batch, tokens, _) = self.spec, hidden.shape
        q = self.q_proj(hidden) if spec.q_lora_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden)))
        queries = transpose(reshape(q, (batch, tokens, -1, spec.qk_head_dim)), 1, 2)
        compressed = self.kv_a_proj(hidden)
        latent, shared_key = split(compressed, (spec.kv_lora_rank, spec.head_dim), 2)
        latent = self.kv_a_layernorm(latent)
        latent = reshape(latent, (batch, 1, tokens, spec.kv_lora_rank))
        shared_key = reshape(shared_key, (batch, 1, tokens, spec.head_dim))
        keys, values = self.expand(latent, shared_key)
        out, weights = self.attend(queries, keys, values, mask)
        return self.o_proj(reshape(out, (batch, tokens, -1))), weights


def kimi_linear(spec: KimiLinearSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(kind: tuple[Kind, bool]) -> PreNorm:
        mixes, sparse = kind
        mixer = Alone(KimiDeltaAttention(spec, build)) if mixes == LINEAR else UnrotatedLatentAttention(spec, build)
        return PreNorm(spec, build, mixer, DeepseekMoe(spec, build, Router) if sparse else GatedMLP(spec, build))

    def sees(kind: tuple[Kind, bool]) -> LayerType | None:
        return None if kind[0] == LINEAR else FULL

    kinds = list(zip(spec.kinds, spec.sparse(), strict=True))
    return Decoder(spec, build, layer, kinds, rotary=Unrotated(), sees=sees)


HEADS = language_model(kimi_linear)
