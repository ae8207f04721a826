"""LFM2: layers of short gated convolutions and of attention, before feed-forward layers or experts.

After transformers' modeling_lfm2.py and modeling_lfm2_moe.py (5.23), without the package causal-conv1d.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention, convolution_state
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import Alone, PreNorm
from estimator.families.each_layer import check_each_named
from estimator.families.experts import AUXILIARY, Experts, MoeSpec, entered
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import CausalLM, Head
from estimator.families.mamba2 import causal_conv1d
from estimator.families.modules import Module
from estimator.families.spec import RotaryDecoderSpec, Size, called
from estimator.families.windows import FULL, LayerType
from estimator.tape import dtypes
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, add_scalar, div, mul, mul_scalar, sigmoid, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import gather, topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import contiguous, reshape, split, transpose

Kind = Literal["conv", "full_attention"]
CONVOLUTION: Kind = "conv"
IN_TORCH = "the short convolutions run in plain torch, as they do without the package causal-conv1d; its kernels are not modelled"
PARTS = "w1", "w3", "w2"
NORMS = {"input_layernorm": "operator_norm", "post_attention_layernorm": "ffn_norm"}


class _Spec(RotaryDecoderSpec):
    """What both have in common. `conv_kernel`: tokens that a convolution sees."""

    made = frozenset({"layer_types"})

    max_position_embeddings: Size | None = 128000
    tie_word_embeddings: bool = called("tie_embedding", True)
    conv_bias: bool = False
    conv_kernel: Size = called("conv_L_cache", 3)
    layer_types: tuple[Kind, ...]

    @property
    def cached_per_token(self) -> int | None:
        """Numbers that one token adds to the cache, in the layers of attention alone."""
        return 2 * self.layer_types.count(FULL) * self.num_key_value_heads * self.head_dim

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        state = convolution_state(self.hidden_size, self.conv_kernel)
        full = attention(self.num_key_value_heads, self.head_dim)
        return tuple([state if kind == CONVOLUTION else full for kind in self.layer_types])

    def sparse(self) -> list[bool]:
        """Whether each layer has experts."""
        return [False] * self.num_hidden_layers

    @property
    def width(self) -> int:
        """Of the middle of feed-forward layers."""
        return self.intermediate_size

    @model_validator(mode="after")
    def _each_layer(self) -> Self:
        check_each_named(self.layer_types, self.num_hidden_layers)
        return self

    def config(self) -> dict[str, Any]:
        return super().config() | {"layer_types": [*self.layer_types]}


class Lfm2Spec(_Spec):
    """Feed-forward layers are two thirds as wide as `intermediate_size`, rounded up to a multiple, unless the width is not to be
    adjusted. Older configurations name the layers that attend, and say `block_ff_dim`, which wins where both stand."""

    can = Abilities(gguf=True, graph="lfm-2")

    intermediate_size: Size = called("block_ff_dim")
    block_multiple_of: Size = 256
    block_ffn_dim_multiplier: float | None = 1.0
    block_auto_adjust_ff_dim: bool = True

    @property
    def width(self) -> int:
        if not self.block_auto_adjust_ff_dim:
            return self.intermediate_size
        width = int(2 * self.intermediate_size / 3)
        if self.block_ffn_dim_multiplier is None:
            return width
        multiple = self.block_multiple_of
        return multiple * -(-int(self.block_ffn_dim_multiplier * width) // multiple)

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"full_attn_idxs"}

    @model_validator(mode="before")
    @classmethod
    def _attending(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        made = {key: value for key, value in given.items() if key != "intermediate_size" or given.get("block_ff_dim") is None}
        attending, layers = made.pop("full_attn_idxs", None), made.get("num_hidden_layers")
        if made.get("layer_types") is None and isinstance(layers, int):
            listed = range(layers) if attending is None else attending
            made["layer_types"] = [FULL if i in listed else CONVOLUTION for i in range(layers)]
        return made


class Lfm2MoeSpec(_Spec, MoeSpec):
    """The first `num_dense_layers` have no experts."""

    can = Abilities(gguf=True, graph="lfm-2", routing="sigmoid", mlx_routers="8 bits")
    modelled = AUXILIARY

    intermediate_size: Size = 7168
    moe_intermediate_size: Size
    num_dense_layers: int = 2
    num_experts: Size = 32
    num_experts_per_tok: Size = 4
    use_expert_bias: bool = True
    norm_topk_prob: bool = True

    @property
    def expert_size(self) -> int:
        return self.moe_intermediate_size

    def sparse(self) -> list[bool]:
        return [i >= self.num_dense_layers for i in range(self.num_hidden_layers)]


SPECS = {"lfm2": Lfm2Spec, "lfm2_moe": Lfm2MoeSpec}


class ShortConvolution:
    """A convolution over few tokens, of each channel by itself, between two gates."""

    def __init__(self, spec: Any, build: Builder):
        size, bias = spec.hidden_size, spec.conv_bias
        self.size = size
        self.weight = build.parameter("conv.conv.weight", (size, 1, spec.conv_kernel))
        self.bias = build.parameter("conv.conv.bias", (size,)) if bias else None
        self.in_proj = build.linear("conv.in_proj", size, 3 * size, bias)
        self.out_proj = build.linear("conv.out_proj", size, size, bias)

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden.tape.remarks[IN_TORCH] = None
        projected = transpose(self.in_proj(hidden), 1, 2)
        before, after, x = split(projected, (self.size,) * 3, 1)
        out = mul(before, x)
        out = causal_conv1d(out, reshape(self.weight, (self.size, -1)), self.bias, lambda x: x)
        y = mul(after, out)
        y = contiguous(transpose(y, 1, 2))
        y = self.out_proj(y)
        del projected, before, x, out
        return y


class Router:
    """Sigmoids of the scores; a bias that balances the experts' load may count for the choice."""

    def __init__(self, spec: Lfm2MoeSpec, build: Builder):
        self.spec = spec
        self.weight = build.weight("feed_forward.gate.weight", (spec.num_experts, spec.hidden_size))

    def __call__(self, hidden: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            logits = linear(hidden, self.weight())
            weights = sigmoid(logits)
            if bias is None:
                weights, chosen = topk(weights, self.spec.num_experts_per_tok)
            else:
                ranked = add(weights, bias)
                _values, chosen = topk(ranked, self.spec.num_experts_per_tok)
                weights = to(gather(weights, chosen), logits.dtype)
            if self.spec.norm_topk_prob:
                weights = div(weights, add_scalar(sum_dim(weights, -1, keepdim=True)))
            weights = mul_scalar(weights)
            return logits, weights, chosen


class SparseMoe:
    def __init__(self, spec: Lfm2MoeSpec, build: Builder):
        self.experts = Experts(spec, build, "feed_forward.experts")
        self.gate = Router(spec, build)
        size = (spec.num_experts,)
        self.bias = build.buffer("feed_forward.expert_bias", size, dtypes.float32) if spec.use_expert_bias else None

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits, weights, chosen = self.gate(flat, self.bias)
        out = self.experts(flat, chosen, weights)
        del logits
        return reshape(out, hidden.shape)


def lfm2(spec: Any, build: Builder) -> Decoder:
    """The body of the model."""

    def norm(name: str, size: int) -> Module:
        return build.rms_norm(NORMS.get(name, name), size)

    def head_norm(which: str, _: int) -> Module:
        return build.rms_norm(f"self_attn.{which}_layernorm", spec.head_dim)

    def layer(kind: tuple[Kind, bool]) -> PreNorm:
        mixer = (
            Alone(ShortConvolution(spec, build))
            if kind[0] == CONVOLUTION
            else GroupedQueryAttention(spec, build, output="out_proj", norm=head_norm)
        )
        mlp = SparseMoe(spec, build) if kind[1] else GatedMLP(spec, build, "feed_forward", spec.width, parts=PARTS)
        return PreNorm(spec, build, mixer, mlp, norm)

    def sees(kind: tuple[Kind, bool]) -> LayerType | None:
        return None if kind[0] == CONVOLUTION else FULL

    kinds = list(zip(spec.layer_types, spec.sparse(), strict=True))
    rotary = Rotary(spec.head_dim, early=True)
    return Decoder(spec, build, layer, kinds, rotary=rotary, norm=norm, last="embedding_norm", sees=sees)


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: CausalLM(lfm2(spec, build), spec, build)}
