"""Nemotron-H and Nemotron 3: each layer is one block of Mamba-2, attention, a feed-forward layer, or experts.

After transformers' modeling_nemotron_h.py and configuration_nemotron_h.py (5.23), without the packages mamba-ssm and
causal-conv1d: its Mamba layers are Mamba-2's, on the path in plain torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, mamba_state
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import Alone, SelfAttention
from estimator.families.each_layer import check_each_named
from estimator.families.experts import AUXILIARY, Experts
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.heads import CausalLM, Head
from estimator.families.hybrid import ATTENTION, MAMBA, HybridSpec, Unrotated, UnrotatedAttention
from estimator.families.mamba2 import WITHOUT_LORA, Mixer, MixerSizes, refuse_output_adapter
from estimator.families.modules import ACTIVATIONS
from estimator.families.routers import DeepseekV3Router
from estimator.families.spec import Activation, Size, called
from estimator.families.windows import FULL, LayerType
from estimator.tape import dtypes
from estimator.tape.pointwise import add, add_scalar, mean_last, mul, pow_scalar, rsqrt, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape

Kind = Literal["linear_attention", "full_attention", "mlp", "moe"]
LETTERS: dict[str, Kind] = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
"""Kinds of layers in a `hybrid_override_pattern`."""
OLDER: dict[str, Kind] = {"mamba": "linear_attention", "attention": "full_attention"}
"""Kinds of layers by the names in published files."""
RENAMED = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
    "mamba_chunk_size": "chunk_size",
}
"""Older names of settings."""
SHARED = ("up_proj", "down_proj")


class NemotronHSpec(HybridSpec):
    """What each layer is: a list, or a `hybrid_override_pattern` of letters. Layers that predict several tokens are not built."""

    can = Abilities(gguf=True, graph="nemotron-h", routing="sigmoid", mlx_routers="whole")
    modelled = {**AUXILIARY, "tie_word_embeddings": (False,), "sliding_window": (None,)}
    made = frozenset({"layer_types", "num_hidden_layers"})
    without_lora = WITHOUT_LORA

    layer_types: tuple[Kind, ...]
    intermediate_size: Size = 21504
    max_position_embeddings: Size | None = 4096
    hidden_act: Activation = called("mlp_hidden_act", "relu2")
    mlp_bias: bool = False
    ssm_state_size: Size = 128
    mamba_num_heads: Size = 128
    mamba_head_dim: Size = 64
    mamba_hidden_act: Activation = "silu"
    mamba_ssm_cache_dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    n_groups: Size = 8
    conv_kernel: Size = 4
    chunk_size: Size = 128
    use_bias: bool = False
    use_conv_bias: bool = True
    num_experts: Size = called("n_routed_experts", 8)
    num_experts_per_tok: Size = 2
    moe_intermediate_size: Size = 7688
    moe_shared_expert_intermediate_size: Size = 7688
    moe_latent_size: Size | None = None
    n_group: Size = 1
    topk_group: Size = 1
    norm_topk_prob: bool = True

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return self.layer_types

    @property
    def mixer(self) -> MixerSizes:
        """The sizes of a Mamba-2 mixer."""
        return MixerSizes(
            self.hidden_size,
            self.mamba_num_heads,
            self.mamba_head_dim,
            self.ssm_state_size,
            self.n_groups,
            self.conv_kernel,
            self.chunk_size,
            self.use_bias,
            self.use_conv_bias,
            self.mamba_hidden_act,
        )

    @property
    def state(self) -> CacheLayer:
        inner, states = self.mamba_num_heads * self.mamba_head_dim, self.ssm_state_size
        wide = self.mamba_ssm_cache_dtype == "float32"
        return mamba_state(inner, inner + 2 * self.n_groups * states, states, self.conv_kernel, wide)

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return super().follows(hidden, heads) | {"head_dim": 128}

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"hybrid_override_pattern", "layers_block_type", *RENAMED}

    @model_validator(mode="before")
    @classmethod
    def _kinds(cls, given: Any) -> Any:
        """One list of what layers are, under today's names."""
        if not isinstance(given, Mapping):
            return given
        made = {RENAMED.get(name, name): value for name, value in given.items()}
        pattern, listed = made.pop("hybrid_override_pattern", None), made.pop("layers_block_type", None)
        kinds = made.get("layer_types") or listed
        if kinds is None and isinstance(pattern, str):
            unknown = set(pattern) - set(LETTERS)
            if unknown:
                raise ValueError(f"hybrid_override_pattern has {sorted(unknown)[0]!r}; layers are of {', '.join(LETTERS)}")
            kinds = [LETTERS[letter] for letter in pattern]
        if isinstance(kinds, Sequence) and not isinstance(kinds, str):
            made["layer_types"] = [OLDER.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
            made.setdefault("num_hidden_layers", len(kinds))
        return made

    @model_validator(mode="after")
    def _whole(self) -> Self:
        check_each_named(self.layer_types, self.num_hidden_layers)
        if self.mamba_num_heads % self.n_groups:
            raise ValueError(f"mamba_num_heads {self.mamba_num_heads} is not a multiple of n_groups {self.n_groups}")
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(f"num_experts_per_tok {self.num_experts_per_tok} is more than the {self.num_experts} experts")
        if self.num_experts % self.n_group or self.topk_group > self.n_group:
            raise ValueError(
                f"{self.num_experts} experts do not come in n_group {self.n_group}, of which {self.topk_group} are used"
            )
        return self

    def config(self) -> dict[str, Any]:
        return super().config() | {"layer_types": [*self.layer_types]}


SPECS = {"nemotron_h": NemotronHSpec}


class RMSNorm:
    """Root-mean-square normalisation whose weight multiplies in float32."""

    def __init__(self, build: Builder, name: str, size: int):
        self.weight = build.parameter(name + ".weight", (size,))

    def __call__(self, x: Tensor) -> Tensor:
        out = to(x, dtypes.float32)
        variance = mean_last(pow_scalar(out))
        out = mul(out, rsqrt(add_scalar(variance)))
        result = to(mul(to(self.weight, dtypes.float32), out), x.dtype)
        del variance
        return result


class UngatedExperts(Experts):
    """Experts of two layers, whose input may be a latent of `moe_latent_size` numbers."""

    def __init__(self, spec: NemotronHSpec, build: Builder):
        experts, used = spec.num_experts, spec.num_experts_per_tok
        size, width = spec.moe_latent_size or spec.hidden_size, spec.moe_intermediate_size
        self.num_experts = experts
        self.gate_up_proj = build.weight("mixer.experts.up_proj", (experts, width, size), used)
        self.down_proj = build.weight("mixer.experts.down_proj", (experts, size, width), used)
        self.gate_up_bias = self.down_bias = None
        self.act = ACTIVATIONS[spec.hidden_act]

    def gate(self, gate_up: Tensor) -> Tensor:
        return self.act(gate_up)


class MoE:
    """Routed experts, between two layers that make and read a latent where there is one, and shared ones for every token."""

    def __init__(self, spec: NemotronHSpec, build: Builder):
        latent, width, bias = spec.moe_latent_size, spec.moe_shared_expert_intermediate_size, spec.mlp_bias
        self.experts = UngatedExperts(spec, build)
        self.gate = DeepseekV3Router(spec, build, "mixer.gate")
        self.shared_experts = TwoLayerMLP(spec, build, SHARED, bias, name="mixer.shared_experts", width=width)
        self.inner: Callable[[Tensor], Tensor] = lambda x: x
        self.outer: Callable[[Tensor], Tensor] = lambda x: x
        if latent is not None:
            self.inner = build.linear("mixer.fc1_latent_proj", spec.hidden_size, latent, bias)
            self.outer = build.linear("mixer.fc2_latent_proj", latent, spec.hidden_size, bias)

    def __call__(self, hidden: Tensor) -> Tensor:
        logits, weights, chosen = self.gate(hidden)
        out = reshape(hidden, (-1, hidden.shape[-1]))
        out = self.inner(out)
        out = self.experts(out, chosen, weights)
        out = self.outer(out)
        out = reshape(out, hidden.shape)
        out = add(out, self.shared_experts(hidden))
        del logits
        return out


class Block:
    """A norm before one mixer of any kind, and a residual."""

    def __init__(self, spec: NemotronHSpec, build: Builder, kind: Kind):
        self.norm = RMSNorm(build, "norm", spec.hidden_size)
        self.mixer = _mixer(spec, build, kind)

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        residual = hidden
        out = self.norm(to(hidden, self.norm.weight.dtype))
        out, _ = self.mixer(out, *shared[:-1])
        return add(residual, out)


def _mixer(spec: NemotronHSpec, build: Builder, kind: Kind) -> SelfAttention:
    if kind == ATTENTION:
        return UnrotatedAttention(spec, build, "mixer")
    if kind == MAMBA:
        refuse_output_adapter(build, spec.model_type, "mixer.out_proj")
        return Alone(Mixer(spec.mixer, build, "mixer"))
    if kind == "moe":
        return Alone(MoE(spec, build))
    return Alone(TwoLayerMLP(spec, build, SHARED, spec.mlp_bias, name="mixer"))


class WideLM(CausalLM):
    """Logits are in float32."""

    cuts = True

    def logits(self, hidden: Tensor) -> Tensor:
        return to(super().logits(hidden), dtypes.float32)


def nemotron_h(spec: NemotronHSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(kind: Kind) -> Block:
        return Block(spec, build, kind)

    def norm(name: str, size: int) -> RMSNorm:
        return RMSNorm(build, name, size)

    def sees(kind: Kind) -> LayerType | None:
        return FULL if kind == ATTENTION else None

    return Decoder(
        spec, build, layer, spec.kinds, rotary=Unrotated(), norm=norm, last="norm_f", embedding="embeddings", sees=sees
    )


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: WideLM(nemotron_h(spec, build), spec, build)}
