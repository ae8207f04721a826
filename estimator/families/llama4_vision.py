"""Llama 4's vision tower: patches as one linear layer sees them, learned and rotary positions, and squares that become one token.

After transformers' modeling_llama4.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.counted import counted, stack
from estimator.families.spec import Depth, Size
from estimator.families.towers import Side, SquareTowerSpec
from estimator.tape import dtypes


class Llama4VisionSpec(SquareTowerSpec):
    hidden_size: Size = 768
    intermediate_size: Size = 5632
    num_hidden_layers: Depth = 34
    num_attention_heads: Size = 16
    image_size: Side = 448
    patch_size: Side = 14
    vision_output_dim: Size = 7680
    projector_input_dim: Size = 4096
    projector_output_dim: Size = 4096


SPECS = {"llama4_vision_model": Llama4VisionSpec}


def vision_model(spec: Llama4VisionSpec, build: Builder) -> None:
    size, tokens = spec.hidden_size, spec.patches + 1
    build.linear("patch_embedding.linear", spec.num_channels * spec.patch_size**2, size)
    build.parameter("class_embedding", (size,))
    build.parameter("positional_embedding_vlm", (tokens, size))
    build.layer_norm("layernorm_pre", size)
    build.layer_norm("layernorm_post", size)
    stack(build, spec.num_hidden_layers, lambda _: _layer(spec, build), "model.layers")
    build.linear("vision_adapter.mlp.fc1", spec.intermediate_size, spec.projector_input_dim)
    build.linear("vision_adapter.mlp.fc2", spec.projector_output_dim, spec.projector_output_dim)
    build.buffer("freqs_ci", (tokens, 1, size // spec.num_attention_heads // 2), dtypes.complex64)


def _layer(spec: Llama4VisionSpec, build: Builder) -> None:
    size = spec.hidden_size
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        build.linear("self_attn." + name, size, size, True)
    build.linear("mlp.fc1", size, spec.intermediate_size, True)
    build.linear("mlp.fc2", spec.intermediate_size, size, True)
    build.layer_norm("input_layernorm", size)
    build.layer_norm("post_attention_layernorm", size)


HEADS = {"features": counted(vision_model)}
