"""The language models of Qwen3.5: gated delta nets and gated attention, before feed-forward layers or experts.

After transformers' modeling_qwen3_5.py and modeling_qwen3_5_moe.py (5.23); their delta nets run on the path in plain torch.
"""

from __future__ import annotations

from typing import Literal

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary, Table
from estimator.families.experts import AUXILIARY, MoeSpec
from estimator.families.feed_forward import GatedMLP
from estimator.families.gated_delta import GatedDeltaNet, GatedDeltaSpec, RMSNormGated, delta_decoder
from estimator.families.heads import decoder_heads
from estimator.families.mixtral import Qwen2Moe
from estimator.families.spec import Size
from estimator.families.windows import FULL, LayerType
from estimator.tape.dtypes import DType
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape, transpose


class Qwen35TextSpec(GatedDeltaSpec):
    """The dense kind."""

    can = Abilities(gguf=True, graph="qwen-3.5")


class Qwen35MoeTextSpec(GatedDeltaSpec, MoeSpec):
    """Every layer has experts, so that `intermediate_size` is that of none. PEFT looks for adapters' names in no experts
    (`_MODEL_TO_CONVERSION_PATTERN` calls it like qwen3_5_text)."""

    can = Abilities(gguf=True, graph="qwen-3.5", routing="gate beside", mlx_routers="8 bits")
    modelled = AUXILIARY
    lacks = frozenset({"sequence-classification"})

    intermediate_size: Size = 512
    num_experts: Size = 256
    num_experts_per_tok: Size = 8
    moe_intermediate_size: Size
    shared_expert_intermediate_size: Size
    norm_topk_prob: Literal[True] = True

    @property
    def expert_size(self) -> int:
        return self.moe_intermediate_size


SPECS = {"qwen3_5_text": Qwen35TextSpec, "qwen3_5_moe_text": Qwen35MoeTextSpec}


class SplitDeltaNet(GatedDeltaNet):
    """A delta net with a linear layer each for what the convolution gets, for gates, for beta and for the decay."""

    def make_modules(self, spec: GatedDeltaSpec, build: Builder) -> None:
        hidden, heads = spec.hidden_size, spec.linear_num_value_heads
        self.norm = RMSNormGated(build.parameter("linear_attn.norm.weight", (spec.linear_value_head_dim,)))
        self.out_proj = build.linear("linear_attn.out_proj", spec.value_size, hidden)
        self.in_proj_qkv = build.linear("linear_attn.in_proj_qkv", hidden, 2 * spec.key_size + spec.value_size)
        self.in_proj_z = build.linear("linear_attn.in_proj_z", hidden, spec.value_size)
        self.in_proj_b = build.linear("linear_attn.in_proj_b", hidden, heads)
        self.in_proj_a = build.linear("linear_attn.in_proj_a", hidden, heads)

    def project(self, hidden: Tensor) -> tuple[Tensor, ...]:
        mixed = transpose(self.in_proj_qkv(hidden), 1, 2)
        z = self.in_proj_z(hidden)
        z = reshape(z, (*hidden.shape[:2], -1, self.spec.linear_value_head_dim))
        b = self.in_proj_b(hidden)
        a = self.in_proj_a(hidden)
        return mixed, z, b, a


class InterleavedRotary(Rotary):
    """Rotary positions in three dimensions, of each sequence (`mrope_section`), which are one where it holds text alone."""

    def tables(self, ids: Tensor, dtype: DType) -> dict[LayerType, Table]:
        return {FULL: tuple([empty(ids.tape, (*ids.shape, self.size), dtype, name) for name in ("cos", "sin")])}


def qwen3_5(spec: GatedDeltaSpec, build: Builder) -> Decoder:
    """The body of the model."""
    mlp = Qwen2Moe if isinstance(spec, Qwen35MoeTextSpec) else GatedMLP
    same = [True] * spec.num_hidden_layers
    return delta_decoder(spec, build, lambda _: mlp(spec, build), same, SplitDeltaNet, InterleavedRotary)


HEADS = decoder_heads(qwen3_5)
