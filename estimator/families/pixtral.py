"""Pixtral's vision tower: layers of the Llama kind over an image's patches, with rotary positions in two dimensions.

After transformers' modeling_pixtral.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.counted import counted, stack
from estimator.families.spec import Depth, Size
from estimator.families.towers import Side, SquareTowerSpec
from estimator.tape import dtypes


class PixtralVisionSpec(SquareTowerSpec):
    hidden_size: Size = 1024
    intermediate_size: Size = 4096
    num_hidden_layers: Depth = 24
    num_attention_heads: Size = 16
    image_size: Side = 1024


SPECS = {"pixtral": PixtralVisionSpec}


def vision_model(spec: PixtralVisionSpec, build: Builder) -> None:
    size, patch = spec.hidden_size, (spec.patch_size, spec.patch_size)
    build.convolution("patch_conv", spec.num_channels, size, patch, spec.patch_size, bias=False)
    build.rms_norm("ln_pre", size)
    stack(build, spec.num_hidden_layers, lambda _: _layer(spec, build), "transformer.layers")
    for name in ("inv_freq", "original_inv_freq"):
        build.buffer(name, (size // spec.num_attention_heads // 2,), dtypes.float32)


def _layer(spec: PixtralVisionSpec, build: Builder) -> None:
    size, width = spec.hidden_size, spec.intermediate_size
    build.rms_norm("attention_norm", size)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        build.linear("attention." + name, size, size)
    build.rms_norm("ffn_norm", size)
    build.linear("feed_forward.gate_proj", size, width)
    build.linear("feed_forward.up_proj", size, width)
    build.linear("feed_forward.down_proj", width, size)


HEADS = {"features": counted(vision_model)}
