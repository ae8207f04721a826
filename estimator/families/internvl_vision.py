"""InternVL's vision tower: ViT with a factor for what each block adds.

After transformers' modeling_internvl.py (5.23).
"""

from __future__ import annotations

from typing import Literal

from estimator.families.build import Builder
from estimator.families.counted import counted, stack
from estimator.families.spec import Depth, Size
from estimator.families.towers import Side, SquareTowerSpec


class InternVLVisionSpec(SquareTowerSpec):
    hidden_size: Size = 1024
    intermediate_size: Size = 4096
    num_hidden_layers: Depth = 24
    num_attention_heads: Size = 16
    image_size: Side = 448
    patch_size: Side = 14
    attention_bias: bool = False
    use_qk_norm: bool = False
    norm_type: Literal["layer_norm", "rms_norm"] = "layer_norm"
    use_mask_token: bool = False
    use_absolute_position_embeddings: bool = True
    use_mean_pooling: bool = True


SPECS = {"internvl_vision": InternVLVisionSpec}


def vision_model(spec: InternVLVisionSpec, build: Builder) -> None:
    size, patch = spec.hidden_size, (spec.patch_size, spec.patch_size)
    build.parameter("embeddings.cls_token", (1, 1, size))
    if spec.use_mask_token:
        build.parameter("embeddings.mask_token", (1, 1, size))
    if spec.use_absolute_position_embeddings:
        build.parameter("embeddings.position_embeddings", (1, spec.patches + 1, size))
    build.convolution("embeddings.patch_embeddings.projection", spec.num_channels, size, patch, spec.patch_size)
    stack(build, spec.num_hidden_layers, lambda _: _layer(spec, build))
    if not spec.use_mean_pooling:
        build.layer_norm("layernorm", size)


def _layer(spec: InternVLVisionSpec, build: Builder) -> None:
    size = spec.hidden_size
    norm = build.layer_norm if spec.norm_type == "layer_norm" else build.rms_norm
    for name in ("q_proj", "k_proj", "v_proj"):
        build.linear("attention." + name, size, size, spec.attention_bias)
    build.linear("attention.projection_layer", size, size, True)
    for name in ("q_norm", "k_norm") if spec.use_qk_norm else ():
        build.rms_norm("attention." + name, size)
    for name in ("layernorm_before", "layernorm_after"):
        norm(name, size)
    build.linear("mlp.fc1", size, spec.intermediate_size, True)
    build.linear("mlp.fc2", spec.intermediate_size, size, True)
    for name in ("lambda_1", "lambda_2"):
        build.parameter(name, (size,))


HEADS = {"features": counted(vision_model)}
