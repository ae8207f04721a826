"""Gemma 4's audio tower: two convolutions, and conformer layers that attend to what is near. Its parameters are counted.

After transformers' modeling_gemma4.py (5.23).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from estimator.families.build import Builder
from estimator.families.counted import counted, stack
from estimator.families.gemma4_text import RMSNorm
from estimator.families.gemma4_vision import clippable
from estimator.families.spec import Depth, ModelSpec, Size

Channels = Annotated[tuple[Size, ...], Field(min_length=2, max_length=2)]


class Gemma4AudioSpec(ModelSpec):
    """`subsampling_conv_channels`: of the two convolutions, each of which halves time and frequencies."""

    runs = False

    hidden_size: Size = 1024
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 8
    subsampling_conv_channels: Channels = (128, 32)
    conv_kernel_size: Size = 5
    use_clipped_linears: bool = True
    output_proj_dims: Size = 1536

    def config(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"max_position_embeddings"})


SPECS = {"gemma4_audio": Gemma4AudioSpec}


def audio_model(spec: Gemma4AudioSpec, build: Builder) -> None:
    first, second = spec.subsampling_conv_channels
    for layer, inputs, outputs in ((0, 1, first), (1, first, second)):
        name = f"subsample_conv_projection.layer{layer}"
        build.convolution(name + ".conv", inputs, outputs, (3, 3), 2, 1, bias=False)
        build.layer_norm(name + ".norm", outputs, bias=False)
    build.linear("subsample_conv_projection.input_proj_linear", first // 4 * second, spec.hidden_size)
    build.buffer("rel_pos_enc.inv_timescales", (1, 1, spec.hidden_size // 2), build.dtype)
    stack(build, spec.num_hidden_layers, lambda _: _layer(spec, build))
    build.linear("output_proj", spec.hidden_size, spec.output_proj_dims, True)


def _layer(spec: Gemma4AudioSpec, build: Builder) -> None:
    size, clips = spec.hidden_size, spec.use_clipped_linears
    for part in ("feed_forward1", "feed_forward2"):
        clippable(build, part + ".ffw_layer_1", size, 4 * size, clips)
        clippable(build, part + ".ffw_layer_2", 4 * size, size, clips)
        RMSNorm(build, part + ".pre_layer_norm", size)
        RMSNorm(build, part + ".post_layer_norm", size)
    head = size // spec.num_attention_heads
    build.parameter("self_attn.per_dim_scale", (head,))
    for name in ("q_proj", "k_proj", "v_proj", "post"):
        clippable(build, "self_attn." + name, size, size if name == "post" else head * spec.num_attention_heads, clips)
    build.linear("self_attn.relative_k_proj", size, head * spec.num_attention_heads)
    build.buffer("self_attn.softcap", (), build.dtype)
    clippable(build, "lconv1d.linear_start", size, 2 * size, clips)
    clippable(build, "lconv1d.linear_end", size, size, clips)
    build.convolution("lconv1d.depthwise_conv1d", 1, size, (spec.conv_kernel_size,), bias=False)
    for name in ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out"):
        RMSNorm(build, name, size)


HEADS = {"features": counted(audio_model)}
