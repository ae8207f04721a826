"""StableLM: layer norms, rotary embeddings on a part of each head; in the 12B queries and keys normalised head by head, and
attention and feed-forward side by side.

After transformers' modeling_stablelm.py (5.23).
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import Parallel, SelfAttention
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.layers import Layer
from estimator.families.modules import LayerNorm, Module
from estimator.families.rotary import PartialRotarySpec
from estimator.families.rotations import rotate_first
from estimator.families.spec import Probability, Size
from estimator.tape.layout import Shape
from estimator.tape.pointwise import add, dropout
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, reshape, split, transpose


class StableLmSpec(PartialRotarySpec):
    can = Abilities(gguf=True, graph="stable-lm")
    module_dropouts = ("hidden_dropout",)
    cached = True

    max_position_embeddings: Size | None = 4096
    partial_rotary_factor: float = 0.25
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    use_parallel_residual: bool = False
    hidden_dropout: Probability = 0.0

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.head_dim * self.num_attention_heads != self.hidden_size:
            raise ValueError(f"hidden_size {self.hidden_size} is not head_dim {self.head_dim} x {self.num_attention_heads} heads")
        return self


SPECS = {"stablelm": StableLmSpec}


class LayerNormPerHead:
    """A layer norm for each head, without bias."""

    def __init__(self, name: str, size: int, heads: int, build: Builder):
        self.norms = [LayerNorm(build.parameter(f"{name}.norms.{i}.weight", (size,)), None) for i in range(heads)]

    def __call__(self, x: Tensor) -> Tensor:
        states = split(x, (1,) * len(self.norms), 1)
        return cat([norm(state) for norm, state in zip(self.norms, states, strict=True)], 1)


def _project(module: GroupedQueryAttention, hidden: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    """All three are projected, then transposed; then queries and keys are normalised."""
    q = module.q_proj(hidden)
    k = module.k_proj(hidden)
    v = module.v_proj(hidden)
    q = transpose(reshape(q, heads), 1, 2)
    k = transpose(reshape(k, heads), 1, 2)
    v = transpose(reshape(v, heads), 1, 2)
    if module.q_norm is not None and module.k_norm is not None:
        q = module.q_norm(q)
        k = module.k_norm(k)
    return q, k, v


class OneAfterTheOther:
    """Not a `PreNorm`: what attention is given, and what it gives, is held to the end."""

    def __init__(self, spec: StableLmSpec, build: Builder, attention: SelfAttention, mlp: Module):
        self.self_attn, self.mlp = attention, mlp
        self.input_layernorm = build.layer_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.layer_norm("post_attention_layernorm", spec.hidden_size)
        self.dropout = spec.hidden_dropout if build.training else 0.0

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        attended, _ = self.self_attn(out, *shared[:-1])
        residual = add(residual, attended)
        fed = self.mlp(self.post_attention_layernorm(residual))
        fed = dropout(fed, self.dropout)
        out = add(residual, fed)
        return out


def stablelm(spec: StableLmSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def norm(which: str, heads: int) -> Module:
        return LayerNormPerHead(f"self_attn.{which}_layernorm", spec.head_dim, heads, build)

    def layer(_: None) -> Layer:
        norms = norm if spec.qk_layernorm else None
        attention = GroupedQueryAttention(spec, build, spec.use_qkv_bias, norm=norms, project=_project, rotate=rotate_first)
        mlp = GatedMLP(spec, build)
        if spec.use_parallel_residual:
            return Parallel(spec, build, attention, mlp, build.layer_norm, (0.0, spec.hidden_dropout))
        return OneAfterTheOther(spec, build, attention, mlp)

    return Decoder(spec, build, layer, rotary=Rotary(spec.rotary_size), norm=build.layer_norm)


HEADS = decoder_heads(stablelm)
