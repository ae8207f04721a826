"""Granite's mixtures with a feed-forward layer that every token passes, and those with sliding windows and sinks.

After transformers' modeling_granitemoeshared.py and modeling_granitemoe_swa.py (5.23).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import SelfAttention
from estimator.families.granite import ScaledLM
from estimator.families.granite_swa import Kind, RotaryOfBases, SinkedSpec, sinked_attention, turns
from estimator.families.granitemoe import GraniteMoeLayer, GraniteMoeSpec, begin
from estimator.families.granitemoehybrid import MLP
from estimator.families.heads import Head
from estimator.families.llama import LlamaRotary
from estimator.tape.pointwise import add, mul_scalar
from estimator.tape.tensor import Tensor


class GraniteMoeSharedSpec(GraniteMoeSpec):
    """Without `shared_intermediate_size` there are experts alone."""

    can = Abilities(gguf=True, graph="granite")

    shared_intermediate_size: Annotated[int, Field(ge=0, le=2**31)] = 0


class GraniteMoeSwaSpec(SinkedSpec, GraniteMoeSharedSpec):
    can = Abilities(gguf=True, graph="granite-moe-swa")
    window_pool = "0.5.23"
    attentions = ("eager",)
    implementations = ("transformers",)


SPECS = {"granitemoeshared": GraniteMoeSharedSpec, "granitemoe_swa": GraniteMoeSwaSpec}


class SharedLayer(GraniteMoeLayer):
    """Experts beside a feed-forward layer, if there is one; the experts' sum is held to the end."""

    def __init__(self, spec: GraniteMoeSharedSpec, build: Builder, attention: SelfAttention | None = None):
        super().__init__(spec, build, attention)
        self.shared_mlp = MLP(spec, build) if spec.shared_intermediate_size else None

    def fed_forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        out = self.block_sparse_moe(hidden)
        return (out,) if self.shared_mlp is None else (add(out, self.shared_mlp(hidden)), out)


def granitemoeshared(spec: GraniteMoeSharedSpec, build: Builder) -> Decoder:
    """The body of the model."""
    if not isinstance(spec, GraniteMoeSwaSpec):
        return Decoder(spec, build, lambda _: SharedLayer(spec, build), rotary=LlamaRotary(spec.head_dim), begin=begin)

    def layer(kind: Kind) -> SharedLayer:
        return SharedLayer(spec, build, sinked_attention(spec, build, kind[1]))

    rotary = RotaryOfBases(spec)
    return Decoder(spec, build, layer, spec.layers, rotary=rotary, embedded=mul_scalar, sees=lambda kind: kind[0], turns=turns)


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: ScaledLM(granitemoeshared(spec, build), spec, build)}
