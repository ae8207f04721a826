"""The vision towers of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: patches of two frames each, of which squares become one token.

After transformers' modeling_qwen2_vl.py, modeling_qwen2_5_vl.py, modeling_qwen3_vl.py and modeling_qwen3_5.py (5.23).
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import model_validator

from estimator.families.counted import counted
from estimator.families.qwen_vl_tower import WHOLE, WINDOW, VisionModel
from estimator.families.spec import Activation, Depth, Size, called
from estimator.families.towers import Side, TowerSpec
from estimator.tape.layout import Shape


class VisionSpec(TowerSpec):
    """What they have in common."""

    block_names: ClassVar[tuple[str, str]] = ("mlp.fc1", "mlp.fc2")
    """Of a block's feed-forward layers where they are not gated, by which adapters choose them."""
    merger_names: ClassVar[tuple[str, str]] = ("mlp.0", "mlp.2")
    """Of a merger's layers."""
    merger_norm: ClassVar[str] = "ln_q"
    """Of its norm."""
    gated: ClassVar[bool] = False
    """Whether feed-forward layers are gated, and norms root mean squares."""
    normed_heads: ClassVar[bool] = False
    """Whether queries and keys of each head are normalised."""
    deep_name: ClassVar[str] = "deepstack_merger_list"
    """Of the mergers of layers that are `read`."""
    deep_first: ClassVar[bool] = False
    """Whether these stand before all else."""
    walks: ClassVar[bool] = False
    """Whether a merger goes from layer to layer, so that what its norm gave is let go after the first."""
    attention_names: ClassVar[tuple[str, ...]] = ("attn.qkv", "attn.proj")
    """Of the layers around attention: of queries, keys and values, or of each, and of its output."""
    biased: ClassVar[bool] = False
    """Whether what embeds patches has a bias."""
    hooked: ClassVar[bool] = True
    """Whether transformers knows it for the input embedding, whose output it lets require gradients."""

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

    @property
    def patch_shape(self) -> Shape:
        """One patch, as its processor makes it."""
        return (self.num_channels * self.temporal_patch_size * self.patch_size**2,)

    @property
    def positions(self) -> int:
        """Learned positions, in a square."""
        return 0

    @property
    def attention_biases(self) -> tuple[bool, bool]:
        """Whether attention has biases: of queries, keys and values; of its output layer."""
        return True, True

    @property
    def read(self) -> tuple[int, ...]:
        """Layers whose outputs the language model gets, too."""
        return ()

    @property
    def kinds(self) -> list[int | str]:
        """What each layer is: by what its patches see, and those that are `read` by their numbers."""
        return [i if i in self.read else WHOLE for i in range(self.num_hidden_layers)]

    def window_lengths(self, rows: int, columns: int) -> tuple[int, ...]:
        """Patches of each window of an image of so many rows and columns of patches; empty where attention sees images whole."""
        return ()


class EvenVisionSpec(VisionSpec):
    """A tower of other makers, as wide at its end as within; queries, keys and values have a layer each."""

    hooked = False
    attention_names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")

    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size = 16
    num_channels: Size = 3

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.hidden_size, self.intermediate_size, self.hidden_size


class Qwen2VisionSpec(VisionSpec):
    hidden_size: Size = 3584
    embed_dim: Size = 1280
    mlp_ratio: Size = 4
    hidden_act: Activation = "quick_gelu"

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.embed_dim, self.embed_dim * self.mlp_ratio, self.hidden_size


class _WiderSpec(VisionSpec):
    """What the vision towers of Qwen2.5-VL and Qwen3-VL have in common."""

    intermediate_size: Size
    out_hidden_size: Size = 3584

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.hidden_size, self.intermediate_size, self.out_hidden_size


class Qwen25VisionSpec(_WiderSpec):
    """`fullatt_block_indexes`: layers that see whole images; others see windows of `window_size` pixels."""

    gated = True

    hidden_size: Size = 3584
    intermediate_size: Size = 3420
    hidden_act: Activation = "silu"
    window_size: Size = 112
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)

    @model_validator(mode="after")
    def _windows(self) -> Self:
        if self.window_size < self.spatial_merge_size * self.patch_size:
            least = self.spatial_merge_size * self.patch_size
            raise ValueError(f"window_size {self.window_size} is less than a token's {least} pixels")
        return self

    @property
    def kinds(self) -> list[int | str]:
        return [WHOLE if i in self.fullatt_block_indexes else WINDOW for i in range(self.num_hidden_layers)]

    def window_lengths(self, rows: int, columns: int) -> tuple[int, ...]:
        """Windows row by row, those at the edges cut (vision_utils.py, `get_vision_window_index`)."""
        merge = self.spatial_merge_size
        side = self.window_size // merge // self.patch_size
        across, down = _cut(columns // merge, side), _cut(rows // merge, side)
        return tuple([height * width * merge**2 for height in down for width in across])


class OmniVisionSpec(Qwen25VisionSpec):
    """Qwen2.5-Omni's."""

    attention_names = ("attn.q", "attn.k", "attn.v", "attn.proj")


class Qwen3VisionSpec(_WiderSpec):
    biased, hooked = True, False
    block_names, merger_names, merger_norm = ("mlp.linear_fc1", "mlp.linear_fc2"), ("linear_fc1", "linear_fc2"), "norm"

    hidden_size: Size = 1152
    num_hidden_layers: Depth = called("depth", 27)
    intermediate_size: Size = 4304
    patch_size: Side = 16
    num_position_embeddings: Size = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)
    hidden_act: Activation = "gelu_pytorch_tanh"

    @property
    def positions(self) -> int:
        return self.num_position_embeddings

    @property
    def read(self) -> tuple[int, ...]:
        return self.deepstack_visual_indexes


class Omni3VisionSpec(Qwen3VisionSpec):
    """Qwen3-Omni's."""

    merger_names, merger_norm, deep_name = ("mlp.0", "mlp.2"), "ln_q", "merger_list"
    deep_first = walks = True


class Qwen35VisionSpec(Qwen3VisionSpec):
    """Its configurations say `deepstack_visual_indexes`, which its class does not read."""

    deepstack_visual_indexes: tuple[()] = ()


def _cut(length: int, side: int) -> list[int]:
    """A length in pieces of `side`, and what is left."""
    whole, rest = divmod(length, side)
    return [side] * whole + [rest] * bool(rest)


SPECS: dict[str, type[VisionSpec]] = {
    "qwen2_vl_vision": Qwen2VisionSpec,
    "qwen2_5_vl_vision": Qwen25VisionSpec,
    "qwen2_5_omni_vision_encoder": OmniVisionSpec,
    "qwen3_vl_vision": Qwen3VisionSpec,
    "qwen3_vl_moe_vision": Qwen3VisionSpec,
    "qwen3_omni_moe_vision_encoder": Omni3VisionSpec,
    "qwen3_5_vision": Qwen35VisionSpec,
    "qwen3_5_moe_vision": Qwen35VisionSpec,
}


HEADS = {"features": counted(VisionModel)}
