"""Llama 3.2 Vision's tower: an image in up to four tiles, encoded by layers of which the last ones are gated.

After transformers' modeling_mllama.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.counted import counted, stack
from estimator.families.spec import Depth, Size, called
from estimator.families.towers import Side, SquareTowerSpec

RATIOS = 8
"""Ways in which up to four tiles are arranged (`supported_aspect_ratios`)."""


class MllamaVisionSpec(SquareTowerSpec):
    """`num_global_layers` are gated, after `num_hidden_layers` that are not."""

    hidden_size: Size = 1280
    intermediate_size: Size = 5120
    num_hidden_layers: Depth = 32
    num_global_layers: Depth = 8
    num_attention_heads: Size = called("attention_heads", 16)
    image_size: Side = 448
    patch_size: Side = 14
    vision_output_dim: Size = 7680
    max_num_tiles: Size = 4
    supported_aspect_ratios: tuple[tuple[int, int], ...] | None = None

    @property
    def depth(self) -> int:
        return self.num_hidden_layers + self.num_global_layers

    @property
    def arrangements(self) -> int:
        """Ways in which an image can be cut into tiles, and none."""
        return 1 + (RATIOS if self.supported_aspect_ratios is None else len(self.supported_aspect_ratios))


SPECS = {"mllama_vision_model": MllamaVisionSpec}


def vision_model(spec: MllamaVisionSpec, build: Builder) -> None:
    size, patch = spec.hidden_size, (spec.patch_size, spec.patch_size)
    tokens, tiles = spec.patches + 1, spec.max_num_tiles
    build.convolution("patch_embedding", spec.num_channels, size, patch, spec.patch_size, bias=False)
    build.parameter("class_embedding", (size,))
    build.parameter("gated_positional_embedding.gate", (1,))
    build.parameter("gated_positional_embedding.embedding", (tokens, size))
    build.embedding("gated_positional_embedding.tile_embedding", spec.arrangements, tiles * tokens * size, first=False)
    for name in ("pre_tile_positional_embedding", "post_tile_positional_embedding"):
        build.embedding(name + ".embedding", spec.arrangements, tiles * size, first=False)
        build.parameter(name + ".gate", (1,))
    build.layer_norm("layernorm_pre", size)
    build.layer_norm("layernorm_post", size)
    stack(build, spec.num_hidden_layers, lambda _: _layer(spec, build, gated=False), "transformer.layers")
    stack(build, spec.num_global_layers, lambda _: _layer(spec, build, gated=True), "global_transformer.layers")


def _layer(spec: MllamaVisionSpec, build: Builder, gated: bool) -> None:
    size = spec.hidden_size
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        build.linear("self_attn." + name, size, size)
    build.linear("mlp.fc1", size, spec.intermediate_size, True)
    build.linear("mlp.fc2", spec.intermediate_size, size, True)
    build.layer_norm("input_layernorm", size)
    build.layer_norm("post_attention_layernorm", size)
    for name in ("gate_attn", "gate_ffn") if gated else ():
        build.parameter(name, (1,))


HEADS = {"features": counted(vision_model)}
