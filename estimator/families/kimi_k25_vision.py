"""Kimi K2.5's vision tower: patches of some frames, with a grid of learned positions that is stretched to each image's.

After transformers' modeling_kimi_k25.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from estimator.families.build import Builder
from estimator.families.counted import counted, stack
from estimator.families.spec import Activation, Depth, Size
from estimator.families.towers import Side, TowerSpec
from estimator.tape import dtypes
from estimator.tape.tensor import Tensor


class KimiK25VisionSpec(TowerSpec):
    """`pos_emb_height` and `pos_emb_width`: the grid of learned positions; `pos_emb_time`: how many frames have one."""

    earlier: ClassVar[Mapping[str, str]] = {
        "vt_hidden_size": "hidden_size",
        "vt_intermediate_size": "intermediate_size",
        "vt_num_attention_heads": "num_attention_heads",
        "vt_num_hidden_layers": "num_hidden_layers",
        "init_pos_emb_height": "pos_emb_height",
        "init_pos_emb_width": "pos_emb_width",
        "init_pos_emb_time": "pos_emb_time",
    }
    """What the checkpoint's own configuration calls them."""

    num_hidden_layers: Depth = 27
    hidden_size: Size = 1152
    intermediate_size: Size = 4304
    num_attention_heads: Size = 16
    patch_size: Side = 14
    pos_emb_height: Size = 64
    pos_emb_width: Size = 64
    pos_emb_time: Size = 4
    merge_kernel_size: tuple[Size, Size] = (2, 2)
    hidden_act: Activation = "gelu_pytorch_tanh"

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        return {cls.earlier.get(name, name): value for name, value in given.items()} if isinstance(given, Mapping) else given

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | cls.earlier.keys()


SPECS = {"kimi_k25_vision": KimiK25VisionSpec}


def vision_model(spec: KimiK25VisionSpec, build: Builder) -> list[Tensor]:
    """Declares the tower's parameters; its buffers."""
    size, width = spec.hidden_size, spec.intermediate_size
    build.convolution("patch_embed.proj", spec.num_channels, size, (spec.patch_size, spec.patch_size), spec.patch_size, bias=True)
    build.parameter("patch_embed.pos_emb.position_embeddings", (spec.pos_emb_height, spec.pos_emb_width, size))

    def layer(_: object) -> None:
        build.layer_norm("norm1", size)
        build.layer_norm("norm2", size)
        for name in ("proj", "q_proj", "k_proj", "v_proj"):
            build.linear(f"self_attn.{name}", size, size, True)
        build.linear("mlp.fc1", size, width, True)
        build.linear("mlp.fc2", width, size, True)

    stack(build, spec.num_hidden_layers, layer)
    build.layer_norm("final_layernorm", size)
    half = size // spec.num_attention_heads // 2
    times = build.buffer("patch_embed.pos_emb.time_position_embeddings", (spec.pos_emb_time + 1, size), dtypes.float32)
    return [times, *(build.buffer(name, (-(-half // 2),), dtypes.float32) for name in ("inv_freq", "original_inv_freq"))]


HEADS = {"features": counted(vision_model)}
