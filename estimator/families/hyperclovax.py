"""HyperCLOVA X: Granite, with a norm behind each block where the config says so.

After transformers' modeling_hyperclovax.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import BATCHES, Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm, Sandwich, scaled
from estimator.families.feed_forward import GatedMLP
from estimator.families.granite import GraniteSpec, ScaledLM
from estimator.families.heads import Head
from estimator.families.llama import LlamaRotary, decoder_layer, self_attention
from estimator.tape.pointwise import mul_scalar


class HyperClovaXSpec(GraniteSpec):
    in_sglang = "transformers"
    can = Abilities(batches=BATCHES)

    use_post_norm: bool = True


SPECS = {"hyperclovax": HyperClovaXSpec}


def hyperclovax(spec: HyperClovaXSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(_: None) -> PreNorm | Sandwich:
        if not spec.use_post_norm:
            return decoder_layer(spec, build, join=scaled)
        attention, mlp = self_attention(spec, build), GatedMLP(spec, build, bias=spec.mlp_bias)
        names = "input_layernorm", "post_attention_layernorm", "post_norm1", "post_norm2"
        before_attention, before_mlp, after_attention, after_mlp = [build.rms_norm(name, spec.hidden_size) for name in names]
        return Sandwich(attention, mlp, (before_attention, after_attention, before_mlp, after_mlp), scaled)

    return Decoder(spec, build, layer, rotary=LlamaRotary(spec.head_dim), embedded=mul_scalar)


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: ScaledLM(hyperclovax(spec, build), spec, build)}
