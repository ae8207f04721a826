"""The vision towers of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: patches of two frames each, of which squares become one token.

After transformers' modeling_qwen2_vl.py, modeling_qwen2_5_vl.py, modeling_qwen3_vl.py and modeling_qwen3_5.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.counted import counted, stack
from estimator.families.spec import Activation, Depth, Size, called
from estimator.families.towers import Side, TowerSpec
from estimator.tape import dtypes
from estimator.tape.tensor import Tensor


class _Spec(TowerSpec):
    """What the three have in common."""

    num_hidden_layers: Depth = called("depth", 32)
    num_attention_heads: Size = called("num_heads", 16)
    num_channels: Size = called("in_channels", 3)
    patch_size: Side = 14
    temporal_patch_size: Side = 2
    spatial_merge_size: Size = 2

    @property
    def width(self) -> int:
        return self.widths[0]

    @property
    def widths(self) -> tuple[int, int, int]:
        """Widths of hidden states, of what is inside the feed-forward layers, and of the output, which the language model
        reads."""
        raise NotImplementedError


class Qwen2VisionSpec(_Spec):
    hidden_size: Size = 3584
    embed_dim: Size = 1280
    mlp_ratio: Size = 4
    hidden_act: Activation = "quick_gelu"

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.embed_dim, self.embed_dim * self.mlp_ratio, self.hidden_size


class _WiderSpec(_Spec):
    """What the vision towers of Qwen2.5-VL and Qwen3-VL have in common."""

    intermediate_size: Size
    out_hidden_size: Size = 3584

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.hidden_size, self.intermediate_size, self.out_hidden_size


class Qwen25VisionSpec(_WiderSpec):
    hidden_size: Size = 3584
    intermediate_size: Size = 3420
    hidden_act: Activation = "silu"


class Qwen3VisionSpec(_WiderSpec):
    """`deepstack_visual_indexes`: layers whose outputs the language model gets, too."""

    hidden_size: Size = 1152
    num_hidden_layers: Depth = called("depth", 27)
    intermediate_size: Size = 4304
    patch_size: Side = 16
    num_position_embeddings: Size = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)
    hidden_act: Activation = "gelu_pytorch_tanh"


class Qwen35VisionSpec(Qwen3VisionSpec):
    """Its configurations say `deepstack_visual_indexes`, which its class does not read."""

    deepstack_visual_indexes: tuple[()] = ()


SPECS: dict[str, type[_Spec]] = {
    "qwen2_vl_vision": Qwen2VisionSpec,
    "qwen2_5_vl_vision": Qwen25VisionSpec,
    "qwen3_vl_vision": Qwen3VisionSpec,
    "qwen3_5_vision": Qwen35VisionSpec,
    "qwen3_5_moe_vision": Qwen35VisionSpec,
}


def vision_model(spec: _Spec, build: Builder) -> list[Tensor]:
    """Declares the tower's parameters; its buffers."""
    size, _, given = spec.widths
    merged = size * spec.spatial_merge_size**2
    patch = spec.temporal_patch_size, spec.patch_size, spec.patch_size
    newest = isinstance(spec, Qwen3VisionSpec)
    build.convolution("patch_embed.proj", spec.num_channels, size, patch, spec.patch_size, bias=newest)
    stack(build, spec.num_hidden_layers, lambda _: _layer(spec, build), "blocks")
    _norm(spec, build, "merger.norm", size)
    _mlp(build, "merger", merged, merged, given)
    if isinstance(spec, Qwen3VisionSpec):
        build.embedding("pos_embed", spec.num_position_embeddings, size, first=False)
        for i in range(len(spec.deepstack_visual_indexes)):
            _norm(spec, build, f"deepstack_merger_list.{i}.norm", merged)
            _mlp(build, f"deepstack_merger_list.{i}", merged, merged, given)
    frequencies = (-(-(size // spec.num_attention_heads // 2) // 2),)
    return [build.buffer(name, frequencies, dtypes.float32) for name in ("inv_freq", "original_inv_freq")]


def _layer(spec: _Spec, build: Builder) -> None:
    size, width, _ = spec.widths
    _norm(spec, build, "norm1", size)
    _norm(spec, build, "norm2", size)
    build.linear("attn.qkv", size, 3 * size, True)
    build.linear("attn.proj", size, size, True)
    if isinstance(spec, Qwen25VisionSpec):
        build.linear("mlp.gate_proj", size, width, True)
        build.linear("mlp.up_proj", size, width, True)
        build.linear("mlp.down_proj", width, size, True)
    else:
        _mlp(build, "mlp", size, width, size)


def _norm(spec: _Spec, build: Builder, name: str, size: int) -> None:
    if isinstance(spec, Qwen25VisionSpec):
        build.rms_norm(name, size)
    else:
        build.layer_norm(name, size)


def _mlp(build: Builder, name: str, inputs: int, width: int, outputs: int) -> None:
    build.linear(name + ".fc1", inputs, width, True)
    build.linear(name + ".fc2", width, outputs, True)


HEADS = {"features": counted(vision_model)}
