"""Gemma 4's audio tower: two convolutions, and conformer layers that attend to what is near. Its parameters are counted.

After transformers' modeling_gemma4.py (5.23).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from estimator.contract.errors import NotModelled
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.gemma4_per_layer import RMSNorm
from estimator.families.gemma4_vision import clippable
from estimator.families.spec import Depth, ModelSpec, Size
from estimator.tape.tensor import Tensor

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


def audio_model(spec: Gemma4AudioSpec, build: Builder) -> list[object]:
    """What lives with the model beside its parameters. transformers recomputes none of its layers; Accelerate shards each by
    itself, as the model names their class."""
    first, second = spec.subsampling_conv_channels
    for layer, inputs, outputs in ((0, 1, first), (1, first, second)):
        name = f"subsample_conv_projection.layer{layer}"
        build.convolution(name + ".conv", inputs, outputs, (3, 3), 2, 1, bias=False)
        build.layer_norm(name + ".norm", outputs, bias=False)
    build.linear("subsample_conv_projection.input_proj_linear", first // 4 * second, spec.hidden_size)
    held: list[object] = [build.buffer("rel_pos_enc.inv_timescales", (1, 1, spec.hidden_size // 2), build.dtype)]
    held.append(build.layers(spec.num_hidden_layers, lambda _: _Layer(spec, build)))
    build.linear("output_proj", spec.hidden_size, spec.output_proj_dims, True)
    return held


class _Layer:
    """A layer that is loaded, and not run."""

    def __init__(self, spec: Gemma4AudioSpec, build: Builder):
        size, clips, head = spec.hidden_size, spec.use_clipped_linears, spec.hidden_size // spec.num_attention_heads
        heads = head * spec.num_attention_heads
        held: list[object] = []
        for part in ("feed_forward1", "feed_forward2"):
            held.append(clippable(build, f"{part}.ffw_layer_1", size, 4 * size, clips))
            held.append(clippable(build, f"{part}.ffw_layer_2", 4 * size, size, clips))
            RMSNorm(build, f"{part}.pre_layer_norm", size)
            RMSNorm(build, f"{part}.post_layer_norm", size)
        build.parameter("self_attn.per_dim_scale", (head,))
        held += [clippable(build, f"self_attn.{part}", size, heads, clips) for part in ("q_proj", "k_proj", "v_proj")]
        held.append(clippable(build, "self_attn.post", size, size, clips))
        build.linear("self_attn.relative_k_proj", size, heads)
        held.append(build.buffer("self_attn.softcap", (), build.dtype))
        held.append(clippable(build, "lconv1d.linear_start", size, 2 * size, clips))
        held.append(clippable(build, "lconv1d.linear_end", size, size, clips))
        build.convolution("lconv1d.depthwise_conv1d", 1, size, (spec.conv_kernel_size,), bias=False)
        for norm in ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out"):
            RMSNorm(build, norm, size)
        self.held = held

    def __call__(self, hidden: Tensor) -> Tensor:
        raise NotModelled("Gemma 4's audio tower is not run: its parameters are counted")


HEADS = {"features": counted(audio_model)}
