"""BitNet b1.58, in full precision: Llama with a norm before the last linear layer of each block, and squared ReLUs.

After transformers' modeling_bitnet.py (5.23). What replaces its linear layers by ternary ones is a format of weights.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import language_model
from estimator.families.spec import Activation, DecoderSpec, RotaryDecoderSpec
from estimator.tape.tensor import Tensor


class BitNetSpec(RotaryDecoderSpec):
    in_sglang = "transformers"
    can = Abilities()
    cached = True

    hidden_act: Activation = "relu2"
    attention_bias: bool = False

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return super().follows(hidden, heads) | {"num_key_value_heads": 5}

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.head_dim * self.num_attention_heads != self.hidden_size:
            raise ValueError(f"hidden_size {self.hidden_size} is not head_dim {self.head_dim} x {self.num_attention_heads} heads")
        return self


SPECS = {"bitnet": BitNetSpec}


class Attention(GroupedQueryAttention):
    def make_projections(self, spec: DecoderSpec, build: Builder, bias: bool, output_bias: bool, output: str) -> None:
        super().make_projections(spec, build, bias, output_bias, output)
        self.inner_norm = build.rms_norm("self_attn.attn_sub_norm", spec.hidden_size)


class MLP(GatedMLP):
    def __init__(self, spec: DecoderSpec, build: Builder):
        super().__init__(spec, build)
        self.ffn_sub_norm = build.rms_norm("mlp.ffn_sub_norm", spec.intermediate_size)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.ffn_sub_norm(self.gated(x, self.gate_proj, self.up_proj)))


def bitnet(spec: BitNetSpec, build: Builder) -> Decoder:
    """The body of the model."""
    bias = spec.attention_bias

    def layer(_: None) -> PreNorm:
        return PreNorm(spec, build, Attention(spec, build, bias, bias), MLP(spec, build))

    return Decoder(spec, build, layer)


HEADS = language_model(bitnet)
