"""Jamba: layers of Mamba and a few of attention without positions, before feed-forward layers or experts.

After transformers' modeling_jamba.py (5.23), without the packages mamba-ssm and causal-conv1d: its Mamba layers are Mamba's, with
norms of what the scan gets, and loop over the tokens in plain torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, mamba_state
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import Alone, PreNorm
from estimator.families.experts import AUXILIARY, Experts, entered
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import decoder_heads
from estimator.families.hybrid import ATTENTION, MAMBA, HybridSpec, Kind, Unrotated, UnrotatedAttention
from estimator.families.mamba import MixerSizes, NormedMixer, refuse_few_bits
from estimator.families.spec import Size, called
from estimator.families.windows import FULL, LayerType
from estimator.tape import dtypes
from estimator.tape.matmul import linear
from estimator.tape.pointwise import softmax, to
from estimator.tape.selection import topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape

NORMS = "input_layernorm", "pre_ff_layernorm"


class JambaSpec(HybridSpec):
    """Of `attn_layer_period` layers the one at the offset attends; of `expert_layer_period` the one at the offset has experts,
    if they are more than one. Without `mamba_dt_rank`, or with "auto", it is a sixteenth of the width, rounded up."""

    can = Abilities(gguf=True, graph="jamba-1", routing="not normalized", mlx_routers="8 bits")
    modelled = {**AUXILIARY, "use_mambapy": (False,)}
    own_products = True
    in_sglang = "none"

    intermediate_size: Size = 14336
    max_position_embeddings: Size | None = 262144
    num_experts: Size = 16
    num_experts_per_tok: Size = 2
    attn_layer_period: Size = 8
    attn_layer_offset: int = 4
    expert_layer_period: Size = 2
    expert_layer_offset: int = 1
    mamba_d_state: Size = 16
    mamba_d_conv: Size = 4
    mamba_expand: Size = 2
    time_step_rank: Size = called("mamba_dt_rank")
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False

    @property
    def kinds(self) -> tuple[Kind, ...]:
        period, offset = self.attn_layer_period, self.attn_layer_offset
        return tuple([ATTENTION if i % period == offset else MAMBA for i in range(self.num_hidden_layers)])

    def sparse(self) -> list[bool]:
        """Whether each layer has experts."""
        period, offset = self.expert_layer_period, self.expert_layer_offset
        return [self.num_experts > 1 and i % period == offset for i in range(self.num_hidden_layers)]

    @property
    def expert_size(self) -> int:
        """Width of one expert."""
        return self.intermediate_size

    @property
    def mixer(self) -> MixerSizes:
        """The sizes of a Mamba mixer."""
        return MixerSizes(
            self.hidden_size,
            self.mamba_expand * self.hidden_size,
            self.mamba_d_state,
            self.time_step_rank,
            self.mamba_d_conv,
            self.mamba_proj_bias,
            self.mamba_conv_bias,
            self.hidden_act,
        )

    @property
    def state(self) -> CacheLayer:
        inner = self.mamba_expand * self.hidden_size
        return mamba_state(inner, inner, self.mamba_d_state, self.mamba_d_conv)

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return super().follows(hidden, heads) | {"num_key_value_heads": 8, "time_step_rank": -(-hidden // 16)}

    @model_validator(mode="before")
    @classmethod
    def _automatic(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("mamba_dt_rank") == "auto":
            return {name: value for name, value in given.items() if name != "mamba_dt_rank"}
        return given

    @model_validator(mode="after")
    def _periods(self) -> Self:
        for name in ("attn_layer", "expert_layer"):
            period, offset = getattr(self, name + "_period"), getattr(self, name + "_offset")
            if not 0 <= offset < period:
                raise ValueError(f"{name}_offset {offset} is not from 0 to {name}_period {period} less one")
        if 1 < self.num_experts < self.num_experts_per_tok:
            raise ValueError(f"num_experts_per_tok {self.num_experts_per_tok} is more than the {self.num_experts} experts")
        return self


SPECS = {"jamba": JambaSpec}


class JambaMixer(NormedMixer):
    """`JambaMambaMixer`."""

    def __init__(self, spec: MixerSizes, build: Builder):
        refuse_few_bits(build, "jamba")
        super().__init__(spec, build, "mamba")
        self.norms = (
            build.rms_norm("mamba.dt_layernorm", spec.time_step_rank),
            build.rms_norm("mamba.b_layernorm", spec.state_size),
            build.rms_norm("mamba.c_layernorm", spec.state_size),
        )

    def offer(self) -> None:
        """Nothing: no fused kernel has these norms."""


class Router:
    """Softmax over all experts, then the best ones, whose weights have the hidden states' type."""

    def __init__(self, spec: JambaSpec, build: Builder):
        self.top_k = spec.num_experts_per_tok
        self.weight = build.weight("feed_forward.router.weight", (spec.num_experts, spec.hidden_size))

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            logits = linear(hidden, self.weight())
            probabilities = softmax(logits, dtypes.float32)
            values, chosen = topk(probabilities, self.top_k)
            return logits, to(values, hidden.dtype), chosen


class SparseMoe:
    def __init__(self, spec: JambaSpec, build: Builder):
        self.router = Router(spec, build)
        self.experts = Experts(spec, build, "feed_forward.experts")

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits, weights, chosen = self.router(flat)
        out = self.experts(flat, chosen, weights)
        del logits
        return reshape(out, hidden.shape)


def jamba(spec: JambaSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(kind: tuple[Kind, bool]) -> PreNorm:
        mixer = UnrotatedAttention(spec, build) if kind[0] == ATTENTION else Alone(JambaMixer(spec.mixer, build))
        mlp = SparseMoe(spec, build) if kind[1] else GatedMLP(spec, build, "feed_forward")
        return PreNorm(spec, build, mixer, mlp, names=NORMS)

    def sees(kind: tuple[Kind, bool]) -> LayerType | None:
        return FULL if kind[0] == ATTENTION else None

    kinds = list(zip(spec.kinds, spec.sparse(), strict=True))
    return Decoder(spec, build, layer, kinds, rotary=Unrotated(), last="final_layernorm", sees=sees)


HEADS = decoder_heads(jamba)
