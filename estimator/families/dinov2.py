"""DINOv2: ViT with a factor for what each block adds.

After transformers' modeling_dinov2.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.counted import counted, stack
from estimator.families.towers import Side, SquareTowerSpec
from estimator.specs.spec import Depth, Size


class Dinov2Spec(SquareTowerSpec):
    hidden_size: Size = 768
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 12
    mlp_ratio: Size = 4
    patch_size: Side = 14
    qkv_bias: bool = True
    use_swiglu_ffn: bool = False
    use_mask_token: bool = True


SPECS = {"dinov2": Dinov2Spec}


def body(spec: Dinov2Spec, build: Builder) -> None:
    """The model without a head, as it is published (`Dinov2Model`)."""
    size, patch = spec.hidden_size, (spec.patch_size, spec.patch_size)
    build.parameter("embeddings.cls_token", (1, 1, size))
    if spec.use_mask_token:
        build.parameter("embeddings.mask_token", (1, size))
    build.parameter("embeddings.position_embeddings", (1, spec.patches + 1, size))
    build.convolution("embeddings.patch_embeddings.projection", spec.num_channels, size, patch, spec.patch_size)
    stack(build, spec.num_hidden_layers, lambda _: _layer(spec, build))
    build.layer_norm("layernorm", size)


def _layer(spec: Dinov2Spec, build: Builder) -> None:
    size = spec.hidden_size
    width = size * spec.mlp_ratio
    build.layer_norm("norm1", size)
    for name in ("q_proj", "k_proj", "v_proj"):
        build.linear("attention." + name, size, size, spec.qkv_bias)
    build.linear("attention.o_proj", size, size, True)
    build.parameter("layer_scale1.lambda1", (size,))
    build.layer_norm("norm2", size)
    if spec.use_swiglu_ffn:
        width = (int(width * 2 / 3) + 7) // 8 * 8
        build.linear("mlp.gate_proj", size, width, True)
        build.linear("mlp.up_proj", size, width, True)
        build.linear("mlp.down_proj", width, size, True)
    else:
        build.linear("mlp.fc1", size, width, True)
        build.linear("mlp.fc2", width, size, True)
    build.parameter("layer_scale2.lambda1", (size,))


HEADS = {"features": counted(body)}
