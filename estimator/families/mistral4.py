"""Mistral Small 4: DeepSeek-V3's layers with queries scaled by their position, and a softmax in the router.

After transformers' modeling_mistral4.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.deepseek import DeepseekMoe, DeepseekV3Spec
from estimator.families.experts import AUXILIARY
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import decoder_heads
from estimator.families.latent import LatentAttention
from estimator.families.latent import Rotary as Tables
from estimator.families.rotations import scaled_by_position
from estimator.families.routers import SoftmaxGroupRouter
from estimator.families.spec import Size, called
from estimator.tape.tensor import Tensor


class Mistral4Spec(DeepseekV3Spec):
    can = Abilities(gguf=True, graph="mistral-4")
    held_in = {}
    modelled = AUXILIARY

    max_position_embeddings: Size | None = 1048576
    num_experts: Size = called("n_routed_experts", 128)
    num_experts_per_tok: Size = 4
    kv_lora_rank: Size = 256
    q_lora_rank: Size | None = 1024
    qk_nope_head_dim: Size = 64
    first_k_dense_replace: int = 0
    n_group: Size = 1
    topk_group: Size = 1

    @model_validator(mode="before")
    @classmethod
    def _whole_head(cls, given: Any) -> Any:
        """Here `head_dim` is a whole head of queries, rotated part and other, as the configuration class writes it."""
        if not isinstance(given, Mapping) or "qk_rope_head_dim" not in given:
            return given
        whole = given["qk_rope_head_dim"], given.get("qk_nope_head_dim", 64)
        told = given.get("head_dim")
        if not all(isinstance(size, int) for size in (*whole, told)) or told != sum(whole):
            return given
        return {name: value for name, value in given.items() if name != "head_dim"}


SPECS = {"mistral4": Mistral4Spec}


class ScaledLatentAttention(LatentAttention):
    def scaled(self, queries: Tensor, rotary: Tables) -> Tensor:
        return scaled_by_position(queries, rotary[0])


def mistral4(spec: Mistral4Spec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(sparse: bool) -> PreNorm:
        attention = ScaledLatentAttention(spec, build)
        return PreNorm(spec, build, attention, DeepseekMoe(spec, build, SoftmaxGroupRouter) if sparse else GatedMLP(spec, build))

    return Decoder(spec, build, layer, spec.sparse(), rotary=Rotary(spec.head_dim))


HEADS = decoder_heads(mistral4)
