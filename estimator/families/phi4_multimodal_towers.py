"""What Phi-4 multimodal sees and hears with: SigLIP's layers, and a conformer. Their parameters are counted.

After transformers' modeling_phi4_multimodal.py (5.23).
"""

from __future__ import annotations

from math import log2
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from estimator.families import clip
from estimator.families.build import Builder
from estimator.families.siglip_pooling import PoolingHead
from estimator.families.spec import Activation, Depth, ModelSpec, Size, called
from estimator.families.towers import Side, SquareTowerSpec


class Phi4VisionSpec(SquareTowerSpec):
    hidden_size: Size = 1152
    intermediate_size: Size = 4304
    num_hidden_layers: Depth = 27
    num_attention_heads: Size = 16
    image_size: Side = 448
    patch_size: Side = 14
    hidden_act: Activation = "gelu_pytorch_tanh"
    crop_size: Size = 448
    feature_layer: int = -2


class Phi4AudioSpec(ModelSpec):
    """`time_reduction`: frames that become one, halved by each convolution. `bias_max_distance`: how far apart frames are told
    from each other."""

    runs = False

    hidden_size: Size = 1024
    intermediate_size: Size = 1536
    num_hidden_layers: Depth = called("num_blocks", 24)
    num_attention_heads: Size = 16
    ext_pw_out_channel: Size = 1024
    depthwise_separable_out_channel: Size = 1024
    depthwise_multiplier: Size = 1
    kernel_size: Size = 3
    input_size: Size = 80
    time_reduction: Annotated[int, Field(ge=2, le=2**10)] = 8
    bias_max_distance: Size = 1000
    bias_symmetric: bool = False
    nemo_conv_channels: Size = 1024
    downsample_rate: Size = 1

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.time_reduction & (self.time_reduction - 1):
            raise ValueError(f"time_reduction {self.time_reduction} is no power of two")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} heads")
        return self

    @property
    def halvings(self) -> int:
        """Convolutions that halve time and frequencies."""
        return int(log2(self.time_reduction))

    @property
    def frequencies(self) -> int:
        """Those that are left of a spectrogram's (`nemo_final_size`)."""
        left = self.input_size
        for _ in range(self.halvings):
            left = (left - 1) // 2 + 1
        return left

    def config(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude={"max_position_embeddings"})


def vision_model(spec: Phi4VisionSpec, build: Builder) -> object:
    """`Phi4MultimodalVisionModel`; what lives with the model beside its parameters."""
    size, patch = spec.hidden_size, (spec.patch_size, spec.patch_size)
    build.convolution("embeddings.patch_embedding", spec.num_channels, size, patch, spec.patch_size)
    build.embedding("embeddings.position_embedding", spec.patches, size, first=False)
    tower = clip.TowerSpec.model_validate(spec.model_dump(exclude={"crop_size", "feature_layer"}))
    layers = build.layers(spec.num_hidden_layers, lambda _: clip.EncoderLayer(tower, build, True), "encoder.layers")
    build.layer_norm("post_layernorm", size)
    return layers, PoolingHead(spec, build, "head")


def audio_model(spec: Phi4AudioSpec, build: Builder) -> list[object]:
    """`Phi4MultimodalAudioModel`, likewise."""
    held: list[object] = [
        build.buffer(f"encoder_embedding.{name}", (spec.input_size,), build.dtype) for name in ("global_mean", "global_invstd")
    ]
    channels = spec.nemo_conv_channels
    build.convolution("embed.conv.0", 1, channels, (3, 3), 2, 1)
    for halving in range(spec.halvings - 1):
        build.convolution(f"embed.conv.{3 * halving + 2}", 1, channels, (3, 3), 2, 1)
        build.convolution(f"embed.conv.{3 * halving + 3}", channels, channels, (1, 1))
    build.linear("embed.out", channels * spec.frequencies, spec.hidden_size, True)
    buckets = spec.bias_max_distance * (1 if spec.bias_symmetric else 2)
    build.embedding("relative_attention_bias_layer.bias_values", buckets, spec.num_attention_heads, first=False)
    for layer in range(spec.num_hidden_layers):
        _conformer(spec, build, f"encoders.{layer}")
    return held


def _conformer(spec: Phi4AudioSpec, build: Builder, layer: str) -> None:
    """`Phi4MultimodalAudioConformerEncoderLayer`. transformers recomputes none of them, and no unit of FSDP is one."""
    size, outer = spec.hidden_size, spec.ext_pw_out_channel
    _feed_forward(f"{layer}.feed_forward_in", spec, build)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        build.linear(f"{layer}.self_attn.{name}", size, size, True)
    conv = f"{layer}.conv"
    build.layer_norm(f"{conv}.layer_norm", size)
    for name in ("b1", "b2"):
        build.parameter(f"{conv}.glu.{name}", (1, outer, 1))
    build.convolution(f"{conv}.glu.ext_pw_conv_1d", size, 2 * outer, (1,))
    wide = size * spec.depthwise_multiplier
    build.convolution(f"{conv}.dw_sep_conv_1d.dw_conv", 1, wide, (spec.kernel_size,), 1, spec.kernel_size - 1)
    build.convolution(f"{conv}.dw_sep_conv_1d.pw_conv", wide, spec.depthwise_separable_out_channel, (1,))
    build.convolution(f"{conv}.ext_pw_conv_1d", size, outer, (1,))
    _feed_forward(f"{layer}.feed_forward_out", spec, build)
    for name in ("layer_norm_att", "layer_norm"):
        build.layer_norm(f"{layer}.{name}", size)


def _feed_forward(name: str, spec: Phi4AudioSpec, build: Builder) -> None:
    build.layer_norm(f"{name}.layer_norm", spec.hidden_size)
    build.linear(f"{name}.gate_up_proj", spec.hidden_size, 2 * spec.intermediate_size, True)
    build.linear(f"{name}.down_proj", spec.intermediate_size, spec.hidden_size, True)
