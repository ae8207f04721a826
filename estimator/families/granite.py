"""Granite: a Llama whose embeddings, residual branches, scores and logits are each multiplied by a number.

A product with a number is a tensor of its own, also where the number is one. After transformers' modeling_granite.py (5.23).
"""

from __future__ import annotations

from estimator.families.heads import CausalLM, Head
from estimator.families.llama import DecoderLayer, Llama, LlamaSpec
from estimator.tape.pointwise import add, mul_scalar
from estimator.tape.tensor import Tensor


class GraniteSpec(LlamaSpec):
    """The multipliers themselves change no bytes."""


SPECS = {"granite": GraniteSpec}


class GraniteDecoderLayer(DecoderLayer):
    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, cos, sin, mask)
        out = add(residual, mul_scalar(out))
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        return add(residual, mul_scalar(out))


class Granite(Llama):
    """The body of the model."""

    layer = GraniteDecoderLayer

    def embed(self, ids: Tensor) -> Tensor:
        return mul_scalar(super().embed(ids))


class GraniteCausalLM(CausalLM):
    """Logits are divided by a number."""

    def logits(self, hidden: Tensor) -> Tensor:
        return mul_scalar(super().logits(hidden))


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: GraniteCausalLM(Granite(spec, build), spec, build)}
