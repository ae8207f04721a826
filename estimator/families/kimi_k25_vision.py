"""Kimi K2.5's vision tower (MoonViT): patches of all images in one row, each of which sees its own image, and a grid of learned
positions that is resampled to each image's.

After transformers' modeling_kimi_k25.py and vision_utils.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.qwen_vl_tower import Block
from estimator.families.spec import Activation, Depth, Size
from estimator.families.towers import Side, TowerSpec
from estimator.tape import dtypes
from estimator.tape.layout import Shape
from estimator.tape.loss import embedding_bag
from estimator.tape.pointwise import add, to
from estimator.tape.reduction import mean
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import index, reshape

TAPS = 16
"""Learned positions that a patch's is resampled from: four along each side (bicubic)."""


class KimiK25VisionSpec(TowerSpec):
    """`pos_emb_height` and `pos_emb_width`: the grid of learned positions; `pos_emb_time`: how many frames have one."""

    attention_names: ClassVar[tuple[str, ...]] = ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.proj")
    attention_biases: ClassVar[tuple[bool, bool]] = (True, True)
    block_names: ClassVar[tuple[str, str]] = ("mlp.fc1", "mlp.fc2")
    normed_heads: ClassVar[bool] = False
    gated: ClassVar[bool] = False
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

    @property
    def widths(self) -> tuple[int, int, int]:
        """Widths of hidden states, of what is inside the feed-forward layers, and of the output."""
        return self.hidden_size, self.intermediate_size, self.hidden_size

    @property
    def patch_shape(self) -> Shape:
        """One patch, as its processor makes it."""
        return self.num_channels, self.patch_size, self.patch_size

    @property
    def square(self) -> int:
        """Patches that become one token."""
        return self.merge_kernel_size[0] * self.merge_kernel_size[1]


SPECS = {"kimi_k25_vision": KimiK25VisionSpec}


class VisionModel:
    """The tower. `grid`: rows and columns of patches of each image; without it the tower is loaded and not run."""

    def __init__(self, spec: KimiK25VisionSpec, build: Builder, grid: tuple[int, int] | None = None):
        size, patch = spec.hidden_size, (spec.patch_size, spec.patch_size)
        self.spec, self.lengths = spec, (grid[0] * grid[1],) if grid else ()
        self.proj = build.convolution("patch_embed.proj", spec.num_channels, size, patch, spec.patch_size)
        shape = spec.pos_emb_height, spec.pos_emb_width, size
        self.position_embeddings = build.parameter("patch_embed.pos_emb.position_embeddings", shape)
        times = (spec.pos_emb_time + 1, size)
        self.times = build.buffer("patch_embed.pos_emb.time_position_embeddings", times, dtypes.float32)
        self.head = size // spec.num_attention_heads
        self.buffers = [
            build.buffer(name, (-(-self.head // 2 // 2),), dtypes.float32) for name in ("inv_freq", "original_inv_freq")
        ]
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Block(spec, build, self.lengths))
        self.final_layernorm = build.layer_norm("final_layernorm", size)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Last hidden states, [patches, width]; and those of the patches that become one token, [tokens, patches, width], the
        mean of an image's frames, of which it has one."""
        tape, (patches, *_), spec = pixels.tape, pixels.shape, self.spec
        hidden = self._embedded(pixels)
        places = empty(tape, (patches, 2), dtypes.int64, "cat")
        cos, sin = self._tables(tape, patches)
        ends = empty(tape, (patches // sum(self.lengths) + 1,), dtypes.int32, "constant_pad_nd")
        for layer in self.layers:
            hidden = layer(hidden, ends, cos, sin)
        hidden = self.final_layernorm(hidden)
        tokens = (patches // spec.square, 1, spec.square)
        merged = empty(tape, tokens, dtypes.int64, "cat")
        pooled = mean(index(hidden, (merged,), (*tokens, spec.hidden_size)), 1)
        del places, cos, sin, ends
        return hidden, pooled

    def _embedded(self, pixels: Tensor) -> Tensor:
        """Patches with their positions (`Kimi_K25VisionPatchEmbed`)."""
        hidden = reshape(self.proj(pixels), (pixels.shape[0], -1))
        return self._placed(hidden)

    def _placed(self, hidden: Tensor) -> Tensor:
        """`Kimi_K25VisionPositionEmbeddings`: the place of each patch in the grid, and that of its frame, in float32."""
        tape, (patches, size) = hidden.tape, hidden.shape
        table = reshape(self.position_embeddings, (-1, size))
        taps = empty(tape, (patches, TAPS), dtypes.int64, "add")
        weights = empty(tape, (patches, TAPS), dtypes.float32, "mul")
        positions = embedding_bag(table, taps, to(weights, table.dtype))
        frames = empty(tape, (patches,), dtypes.int64, "cat")
        positions = add(positions, index(self.times, (frames,), (patches, size)))
        del frames
        return add(hidden, to(positions, hidden.dtype))

    def _tables(self, tape: Tape, patches: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of rows and columns, in float32."""
        shape = patches, self.head
        return empty(tape, shape, dtypes.float32, "cos"), empty(tape, shape, dtypes.float32, "sin")


HEADS = {"features": counted(VisionModel)}
