"""Llama-Nemotron (DeciLM): Llama of which a search has thinned the layers out, each by itself.

A layer may have no attention, no feed-forward layer, a linear layer in the place of either, or a width and key heads of its own.
transformers has no class of it, and the code of its checkpoints is never run: here its layers are transformers' Llama's, in the
sizes that block_configs says. After vLLM's model_executor/models/nemotron_nas.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import added
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import CausalLM, Head
from estimator.families.llama import LlamaRotary
from estimator.families.rotary import RotarySpec
from estimator.families.spec import Size
from estimator.tape.tensor import Tensor

STEP = 256
"""Widths are rounded up to a multiple."""


class _Block(BaseModel):
    """A half of a layer: nothing, a linear layer, or what Llama has there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    no_op: bool = False
    replace_with_linear: bool = False


class AttentionBlock(_Block):
    """`n_heads_in_group`: how many heads of queries share one of keys and values. That it sees fewer tokens is not modelled."""

    n_heads_in_group: Size | None = None
    window_length: Literal[None] = None
    num_sink_tokens: Literal[None] = None
    use_prefill_window_in_sink_attention: Literal[False] = False
    unshifted_sink: Literal[False] = False
    sparsify: Literal[None] = None


class FeedForwardBlock(_Block):
    """`ffn_mult`: of two thirds of the model's width."""

    ffn_mult: float | None = None
    sparsify: Literal[None] = None


class LayerBlocks(BaseModel):
    """A layer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attention: AttentionBlock
    ffn: FeedForwardBlock


class NemotronNasSpec(RotarySpec):
    """`num_key_value_heads` and `intermediate_size` are the most that a layer has."""

    can = Abilities(gguf=True, graph="thinned")
    made = frozenset({"num_key_value_heads", "intermediate_size"})

    max_position_embeddings: Size | None = 131072
    attention_bias: bool = False
    mlp_bias: bool = False
    block_configs: tuple[LayerBlocks, ...]

    def feed_width(self, block: FeedForwardBlock) -> int:
        """The middle of a feed-forward layer."""
        return _width(self.hidden_size, block.ffn_mult or 0)

    def key_heads(self, block: AttentionBlock) -> int:
        """Heads of keys and values of a layer that attends."""
        return self.num_attention_heads // (block.n_heads_in_group or 1)

    @property
    def thinned(self) -> list[tuple[bool, int]]:
        """Of each layer whether it attends, and how wide its feed-forward layer is; 0 without one."""
        return [(not one.attention.no_op, 0 if one.ffn.no_op else self.feed_width(one.ffn)) for one in self.block_configs]

    @property
    def evenly_thinned(self) -> bool:
        """Whether layers that attend have as many key heads, and nothing is a linear layer."""
        linear = any(one.attention.replace_with_linear or one.ffn.replace_with_linear for one in self.block_configs)
        return not linear and len({layer.heads for layer in self.cache_layers}) == 1

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"head_dim": hidden // heads}

    @model_validator(mode="before")
    @classmethod
    def _largest(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not isinstance(given.get("block_configs"), list | tuple):
            return given
        blocks = [LayerBlocks.model_validate(block) for block in given["block_configs"]]
        heads, hidden = given.get("num_attention_heads"), given.get("hidden_size")
        if not isinstance(heads, int) or not isinstance(hidden, int):
            return given
        groups = [block.attention.n_heads_in_group for block in blocks if block.attention.n_heads_in_group]
        most = {
            "num_key_value_heads": heads // min(groups, default=1),
            "intermediate_size": max((_width(hidden, block.ffn.ffn_mult or 0) for block in blocks), default=0) or STEP,
        }
        return {**given, "block_configs": blocks} | {name: most[name] for name in most if given.get(name) is None}

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if len(self.block_configs) != self.num_hidden_layers:
            raise ValueError(
                f"block_configs says {len(self.block_configs)} layers, num_hidden_layers is {self.num_hidden_layers}"
            )
        for i, block in enumerate(self.block_configs):
            attends, feeds = block.attention, block.ffn
            if not (attends.no_op or attends.replace_with_linear):
                group = attends.n_heads_in_group
                if group is None or self.num_attention_heads % group:
                    raise ValueError(
                        f"block_configs[{i}]: n_heads_in_group {group} does not divide {self.num_attention_heads} heads"
                    )
            if not (feeds.no_op or feeds.replace_with_linear) and not feeds.ffn_mult:
                raise ValueError(f"block_configs[{i}]: ffn_mult is missing")
        return self

    def _kept(self) -> list[tuple[int, CacheLayer]]:
        """Layers that keep keys and values."""
        return [
            (i, attention(self.key_heads(block.attention), self.head_dim))
            for i, block in enumerate(self.block_configs)
            if not (block.attention.no_op or block.attention.replace_with_linear)
        ]

    @property
    def cached_per_token(self) -> int | None:
        return sum(2 * layer.heads * layer.key_size for _, layer in self._kept())

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        return tuple([layer for _, layer in self._kept()])

    @property
    def cache_places(self) -> tuple[int, ...]:
        return tuple([place for place, _ in self._kept()])


SPECS = {"nemotron-nas": NemotronNasSpec}


def _width(hidden: int, multiple: float) -> int:
    return -(-int(2 * multiple * hidden / 3) // STEP) * STEP


class Layer:
    """What its blocks leave of a layer of Llama's."""

    def __init__(self, spec: NemotronNasSpec, blocks: LayerBlocks, build: Builder):
        size = spec.hidden_size
        self.self_attn: Any = None
        self.mlp: Any = None
        if blocks.attention.replace_with_linear:
            linear = build.linear("self_attn.linear_attn", size, size, spec.attention_bias)
            self.self_attn = lambda hidden, *shared: (linear(hidden), None)
        elif not blocks.attention.no_op:
            own = spec.model_copy(update={"num_key_value_heads": spec.key_heads(blocks.attention)})
            self.self_attn = GroupedQueryAttention(own, build, spec.attention_bias, spec.attention_bias)
        if self.self_attn:
            self.input_layernorm = build.rms_norm("input_layernorm", size)
        if blocks.ffn.replace_with_linear:
            self.mlp = build.linear("mlp.linear_mlp", size, size)
        elif not blocks.ffn.no_op:
            self.mlp = GatedMLP(spec, build, width=spec.feed_width(blocks.ffn), bias=spec.mlp_bias)
        if self.mlp:
            self.post_attention_layernorm = build.rms_norm("post_attention_layernorm", size)

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        if self.self_attn:
            residual = hidden
            hidden = self.input_layernorm(hidden)
            hidden, _ = self.self_attn(hidden, *shared[:-1])
            hidden = added(hidden, residual)
            del residual
        if self.mlp:
            residual = hidden
            hidden = self.post_attention_layernorm(hidden)
            hidden = self.mlp(hidden)
            hidden = added(hidden, residual)
        return hidden


def nemotron_nas(spec: NemotronNasSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(blocks: LayerBlocks) -> Layer:
        return Layer(spec, blocks, build)

    return Decoder(spec, build, layer, spec.block_configs, rotary=LlamaRotary(spec.head_dim))


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: CausalLM(nemotron_nas(spec, build), spec, build)}
