"""Granite: a Llama whose embeddings, residual branches, scores and logits are each multiplied by a number.

A product with a number is a tensor of its own, also where the number is one. After transformers' modeling_granite.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import scaled
from estimator.families.heads import CausalLM, Head
from estimator.families.llama import LlamaRotary, LlamaSpec, decoder_layer
from estimator.tape.cut import cut_cross_entropy
from estimator.tape.pointwise import mul_scalar
from estimator.tape.tensor import Tensor


class GraniteSpec(LlamaSpec):
    """The multipliers themselves change no bytes."""

    can = Abilities(gguf=True, graph="granite")


SPECS = {"granite": GraniteSpec}


def granite(spec: GraniteSpec, build: Builder) -> Decoder:
    """The body of the model."""
    rotary = LlamaRotary(spec.head_dim)
    return Decoder(spec, build, lambda _: decoder_layer(spec, build, join=scaled), rotary=rotary, embedded=mul_scalar)


class ScaledLM(CausalLM):
    """Logits are multiplied or divided by a number; before cut cross-entropy the hidden states are (axolotl-ai-cloud's fork of
    ml-cross-entropy, 5f0c7a7, cut_cross_entropy/transformers/{granite,cohere}.py)."""

    cuts = True

    def logits(self, hidden: Tensor) -> Tensor:
        return mul_scalar(super().logits(hidden))

    def fused_from(self, hidden: Tensor) -> Tensor:
        return mul_scalar(hidden) if self.loss.fused is cut_cross_entropy else hidden


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: ScaledLM(granite(spec, build), spec, build)}
