"""Step 3.7's vision tower: square images, scaled blocks, and two convolutions that make one of four by four patches.

After transformers' modeling_step3p7.py (5.23), `Step3p7VisionModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from estimator.families.build import Builder
from estimator.families.counted import counted, stack
from estimator.families.rotary import frequencies
from estimator.families.spec import Activation, Depth, Size
from estimator.families.towers import Side, SquareTowerSpec
from estimator.tape import dtypes
from estimator.tape.tensor import Tensor

NAMES = {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
"""What published configurations call some settings."""


class Step3p5VisionSpec(SquareTowerSpec):
    """`mlp_ratio`: how many times as wide its feed-forward layers are."""

    hidden_size: Size = 1536
    num_hidden_layers: Depth = 47
    num_attention_heads: Size = 16
    patch_size: Side = 14
    image_size: Side = 728
    mlp_ratio: Annotated[float, Field(gt=0, le=64)] = 8960 / 1536
    hidden_act: Activation = "quick_gelu"

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | NAMES.keys()

    @model_validator(mode="before")
    @classmethod
    def _published(cls, given: Any) -> Any:
        return {NAMES.get(name, name): value for name, value in given.items()} if isinstance(given, Mapping) else given


SPECS = {"step3p5_vision": Step3p5VisionSpec}


def vision_model(spec: Step3p5VisionSpec, build: Builder) -> list[Tensor]:
    """Declares the tower's parameters; its buffers."""
    size, width = spec.hidden_size, int(spec.hidden_size * spec.mlp_ratio)
    square = (spec.patch_size, spec.patch_size)
    build.convolution("embeddings.patch_embedding", spec.num_channels, size, square, spec.patch_size, bias=False)
    build.parameter("embeddings.position_embedding.weight", (spec.patches, size))
    build.layer_norm("pre_layernorm", size)

    def layer(_: object) -> None:
        for name in ("lambda_1", "lambda_2"):
            build.parameter(name, (size,))
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            build.linear(f"self_attn.{name}", size, size, True)
        build.linear("mlp.fc1", size, width, True)
        build.linear("mlp.fc2", width, size, True)
        for name in ("layernorm_before", "layernorm_after"):
            build.layer_norm(name, size)

    stack(build, spec.num_hidden_layers, layer)
    build.convolution("downsampler1", size, 2 * size, (3, 3), 2, bias=True)
    build.convolution("downsampler2", 2 * size, 4 * size, (3, 3), 2, bias=True)
    places = build.buffer("embeddings.position_ids", (1, spec.patches), dtypes.int64)
    return [places, *frequencies(build, size // spec.num_attention_heads // 2)]


HEADS = {"features": counted(vision_model)}
