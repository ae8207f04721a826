"""Falcon-H1: each layer has a Mamba-2 mixer and attention side by side, before a gated feed-forward layer.

Embeddings, branches, keys and logits are each multiplied by a number, and what the mixer's first layer makes by a vector. A
product with a number is a tensor of its own, also where the number is one. After transformers' modeling_falcon_h1.py (5.23),
without the packages mamba-ssm and causal-conv1d: the mixers run on the path in plain torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention
from estimator.families.decoder import Decoder
from estimator.families.granite import ScaledLM
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import Head
from estimator.families.hybrid import Mamba2HybridSpec
from estimator.families.mamba2 import WITHOUT_LORA, Mixer, refuse_output_adapter
from estimator.families.modules import ACTIVATIONS
from estimator.families.rotary import RotarySpec
from estimator.families.spec import Size
from estimator.tape import dtypes
from estimator.tape.layout import Shape
from estimator.tape.pointwise import add, add_scalar, mean_last, mul, mul_scalar, pow_scalar, rsqrt, silu, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, transpose

HYBRID = "hybrid"


class FalconH1Spec(Mamba2HybridSpec, RotarySpec):
    """`mamba_d_ssm` channels of a mixer, or `mamba_expand` times the model's width where it is null. The multipliers themselves
    change no bytes."""

    can = Abilities(gguf=True, graph="falcon-h1")
    width_key = "mamba_d_ssm"
    without_lora = WITHOUT_LORA

    max_position_embeddings: Size | None = 8192
    mamba_d_ssm: Size | None = 1024
    mamba_rms_norm: bool = False
    mamba_norm_before_gate: bool = True
    projectors_bias: bool = False
    mlp_bias: bool = False

    @property
    def mixer_width(self) -> int:
        return self.mamba_d_ssm or super().mixer_width

    @property
    def kinds(self) -> tuple[str, ...]:
        return (HYBRID,) * self.num_hidden_layers

    @property
    def keeps(self) -> dict[str, tuple[CacheLayer, ...]]:
        return {HYBRID: (self.state, attention(self.num_key_value_heads, self.head_dim))}


SPECS = {"falcon_h1": FalconH1Spec}


class GroupedNorm:
    """Normalisation of each group in float32, before a gate or after it (`FalconH1RMSNormGated`)."""

    def __init__(self, weight: Tensor, groups: int, before_gate: bool):
        self.weight, self.groups, self.before_gate = weight, groups, before_gate

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        out = x if self.before_gate else mul(x, silu(to(gate, dtypes.float32)))
        out = to(out, dtypes.float32)
        out = reshape(out, (*x.shape[:-1], self.groups, -1))
        variance = mean_last(pow_scalar(out))
        out = mul(out, rsqrt(add_scalar(variance)))
        out = mul(reshape(self.weight, (self.groups, -1)), out)
        out = reshape(out, x.shape)
        if self.before_gate:
            out = mul(out, silu(to(gate, dtypes.float32)))
        result = to(out, x.dtype)
        del variance
        return result


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """The scan's result times its gate, where there is no norm."""
    return mul(x, silu(gate))


class ScaledMixer(Mixer):
    """A mixer whose input is multiplied by a number, and its first layer's output by a vector."""

    def __init__(self, spec: FalconH1Spec, build: Builder):
        self.spec = spec
        refuse_output_adapter(build, spec.model_type, "mamba.out_proj")
        super().__init__(spec.mixer, build, "mamba", spec.projectors_bias)
        width = 2 * self.inner + 2 * self.states + self.heads
        self.vector = build.buffer("mamba.mup_vector", (1, 1, width), build.dtype)

    def make_norm(self, build: Builder, name: str) -> Callable[[Tensor, Tensor], Tensor]:
        if not self.spec.mamba_rms_norm:
            return gated
        return GroupedNorm(build.parameter(name, (self.inner,)), self.groups, self.spec.mamba_norm_before_gate)

    def project(self, hidden: Tensor) -> tuple[Tensor, ...]:
        scaled = mul_scalar(hidden)
        return mul(self.in_proj(scaled), self.vector), scaled


def _project(module: GroupedQueryAttention, hidden: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    q = transpose(reshape(module.q_proj(hidden), heads), 1, 2)
    k = mul_scalar(transpose(reshape(module.k_proj(hidden), heads), 1, 2))
    return q, k, transpose(reshape(module.v_proj(hidden), heads), 1, 2)


class MLP:
    """down(up(x) * activation(gate(x) * a)) * b."""

    def __init__(self, spec: FalconH1Spec, build: Builder):
        size, width, bias = spec.hidden_size, spec.intermediate_size, spec.mlp_bias
        self.gate_proj = build.linear("feed_forward.gate_proj", size, width, bias)
        self.up_proj = build.linear("feed_forward.up_proj", size, width, bias)
        self.down_proj = build.linear("feed_forward.down_proj", width, size, bias)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        y = mul(self.up_proj(x), self.act(mul_scalar(self.gate_proj(x))))
        return mul_scalar(self.down_proj(y))


class DecoderLayer:
    """A mixer and attention of the same normalised input, summed; then the feed-forward layer."""

    def __init__(self, spec: FalconH1Spec, build: Builder):
        bias = spec.attention_bias
        self.feed_forward = MLP(spec, build)
        self.mamba = ScaledMixer(spec, build)
        self.self_attn = GroupedQueryAttention(spec, build, bias, bias, project=_project)
        self.input_layernorm = build.rms_norm("input_layernorm", spec.hidden_size)
        self.pre_ff_layernorm = build.rms_norm("pre_ff_layernorm", spec.hidden_size)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        mixed = self.mamba(out)
        mixed = mul_scalar(mixed)
        scaled = mul_scalar(out)
        attended, _ = self.self_attn(scaled, cos, sin, mask)
        del scaled
        attended = mul_scalar(attended)
        out = add(mixed, attended)
        out = add(residual, out)
        residual = out
        out = self.pre_ff_layernorm(out)
        out = self.feed_forward(out)
        out = add(residual, out)
        del mixed, attended
        return out


def falcon_h1(spec: FalconH1Spec, build: Builder) -> Decoder:
    """The body of the model."""
    layer = partial(DecoderLayer, spec, build)
    return Decoder(spec, build, lambda _: layer(), embedded=mul_scalar, last="final_layernorm")


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: ScaledLM(falcon_h1(spec, build), spec, build)}
