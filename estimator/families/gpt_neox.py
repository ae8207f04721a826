"""GPT-NeoX and Pythia: queries, keys and values in one layer, rotary positions on a part of each head, a parallel block.

After transformers' modeling_gpt_neox.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from estimator.families.abilities import BATCHES, Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary, dropped
from estimator.families.decoder_layers import SelfAttention
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.modules import rotate_part
from estimator.families.spec import Activation, DecoderSpec, FullHeadsSpec, Probability
from estimator.tape.layout import Shape
from estimator.tape.pointwise import add, dropout
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, split, transpose


class GPTNeoXSpec(FullHeadsSpec):
    in_sglang = "transformers"
    can = Abilities(batches=BATCHES, prompts=True, returns_cache=True, ppo=True, gguf=True, graph="gpt-neox")
    scales_activations = True
    module_dropouts = ("hidden_dropout",)
    cached = True

    hidden_act: Activation = "gelu"
    hidden_dropout: Probability = 0.0
    attention_bias: bool = True
    use_parallel_residual: bool = True
    rotary_pct: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Part of each head that is rotated; newer configs have it in `rope_parameters`."""

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"rope_parameters"}

    @model_validator(mode="before")
    @classmethod
    def _rotary(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "rope_parameters" not in given:
            return given
        rope = given["rope_parameters"] or {}
        if not isinstance(rope, Mapping):
            raise ValueError("rope_parameters: write a mapping, with partial_rotary_factor in it")
        part = {"rotary_pct": rope["partial_rotary_factor"]} if "partial_rotary_factor" in rope else {}
        return {name: value for name, value in given.items() if name != "rope_parameters"} | part

    @property
    def rotated(self) -> int:
        """Elements of a head that are rotated: pairs."""
        return -(-int(self.head_dim * self.rotary_pct) // 2) * 2

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if not 0 < self.rotated <= self.head_dim:
            raise ValueError(f"rotary_pct {self.rotary_pct} of head_dim {self.head_dim} leaves no pairs to rotate")
        return self


SPECS = {"gpt_neox": GPTNeoXSpec}


class GPTNeoXAttention(GroupedQueryAttention):
    def make_projections(self, spec: DecoderSpec, build: Builder, bias: bool, output_bias: bool, output: str) -> None:
        size = spec.hidden_size
        self.query_key_value = build.linear("attention.query_key_value", size, 3 * size, bias)
        self.o_proj = build.linear("attention.dense", size, size, bias)


def _split(module: Any, hidden: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    """Each head has its queries, keys and values side by side; all of them are held."""
    *batch_and_tokens, _, size = heads
    fused = transpose(reshape(module.query_key_value(hidden), (*batch_and_tokens, -1, 3 * size)), 1, 2)
    q, k, v = split(fused, (size, size, size), 3)
    return q, k, v, fused


class GPTNeoXLayer:
    """Two norms, whose results have no name, and the blocks side by side or one after the other."""

    def __init__(self, spec: GPTNeoXSpec, build: Builder):
        self.parallel = spec.use_parallel_residual
        self.input_layernorm = build.layer_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.layer_norm("post_attention_layernorm", spec.hidden_size)
        self.dropout = spec.hidden_dropout if build.training else 0.0
        self.attention: SelfAttention = GPTNeoXAttention(spec, build, spec.attention_bias, project=_split, rotate=rotate_part)
        self.mlp = TwoLayerMLP(spec, build, ("dense_h_to_4h", "dense_4h_to_h"), bias=True)

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        attended, _ = self.attention(self.input_layernorm(hidden), *shared[:-1])
        attended = dropout(attended, self.dropout)
        if self.parallel:
            fed = self.mlp(self.post_attention_layernorm(hidden))
            fed = dropout(fed, self.dropout)
            return add(add(fed, attended), hidden)
        attended = add(attended, hidden)
        fed = self.mlp(self.post_attention_layernorm(attended))
        fed = dropout(fed, self.dropout)
        return add(fed, attended)


def gpt_neox(spec: GPTNeoXSpec, build: Builder) -> Decoder:
    """The body of the model."""
    return Decoder(
        spec,
        build,
        lambda _: GPTNeoXLayer(spec, build),
        rotary=Rotary(spec.rotated),
        norm=build.layer_norm,
        last="final_layer_norm",
        embedding="embed_in",
        begin=dropped(build, spec.hidden_dropout),
    )


HEADS = decoder_heads(gpt_neox)
