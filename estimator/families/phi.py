"""Phi-1, Phi-1.5 and Phi-2: biases everywhere, attention and feed-forward side by side, rotary embeddings on a part of each head.

After transformers' modeling_phi.py (5.23).
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import Parallel
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.grouped_query import GroupedQueryAttention, normed_after_all
from estimator.families.heads import CausalLM, decoder_heads
from estimator.families.modules import Module
from estimator.families.rotary import PartialRotarySpec
from estimator.families.rotations import rotate_first
from estimator.families.spec import Activation, Probability
from estimator.tape.pointwise import add, dropout
from estimator.tape.tensor import Tensor


class PhiSpec(PartialRotarySpec):
    can = Abilities(gguf=True, graph="phi-2")
    cached = True

    hidden_act: Activation = "gelu_new"
    partial_rotary_factor: float = 0.5
    qk_layernorm: bool = False
    resid_pdrop: Probability = 0.0
    embd_pdrop: Probability = 0.0

    @model_validator(mode="after")
    def _normalised(self) -> Self:
        if self.qk_layernorm and self.head_dim * self.num_attention_heads != self.hidden_size:
            raise ValueError("qk_layernorm needs a head_dim of hidden_size / num_attention_heads")
        return self


SPECS = {"phi": PhiSpec}


def phi(spec: PhiSpec, build: Builder) -> Decoder:
    """The body of the model."""
    dropped = spec.embd_pdrop if build.training else 0.0

    def norm(which: str, heads: int) -> Module:
        return build.layer_norm(f"self_attn.{which}_layernorm", spec.head_dim)

    def layer(_: None) -> Parallel:
        attention = GroupedQueryAttention(
            spec,
            build,
            bias=True,
            output_bias=True,
            output="dense",
            norm=norm if spec.qk_layernorm else None,
            project=normed_after_all,
            rotate=rotate_first,
        )
        mlp = TwoLayerMLP(spec, build, ("fc1", "fc2"), bias=True)
        return Parallel(spec, build, attention, mlp, build.layer_norm, (spec.resid_pdrop, spec.resid_pdrop), _merge)

    def begin(embeds: Tensor) -> tuple[Tensor, Tensor]:
        embeds = dropout(embeds, dropped)
        return embeds, embeds

    rotary = Rotary(spec.rotary_size, early=True)
    return Decoder(spec, build, layer, rotary=rotary, norm=build.layer_norm, last="final_layernorm", begin=begin)


def _merge(attended: Tensor, fed: Tensor, residual: Tensor) -> Tensor:
    """attention + feed-forward, summed first, then + the layer's input."""
    return add(add(attended, fed), residual)


class PhiForCausalLM(CausalLM):
    def __init__(self, spec: PhiSpec, build: Builder):
        super().__init__(phi(spec, build), spec, build, bias=True)


HEADS = decoder_heads(phi) | {"causal-lm": PhiForCausalLM}
