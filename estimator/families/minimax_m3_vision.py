"""MiniMax-M3's vision tower: CLIP's layers over the patches of all images in one row, each of which sees its own image.

A part of each head is rotated, by the place in time, row and column. After transformers' modeling_minimax_m3_vl.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.modules import rotate_part
from estimator.families.qwen_vl_tower import Layer
from estimator.families.qwen_vl_vision import EvenVisionSpec
from estimator.families.spec import Activation, Depth, Size
from estimator.families.towers import Side
from estimator.tape import dtypes
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape


class MiniMaxM3VisionSpec(EvenVisionSpec):
    modelled = {"attention_dropout": (0, 0.0)}

    hidden_size: Size = 1280
    intermediate_size: Size = 5120
    num_hidden_layers: Depth = 32
    image_size: Side = 2016
    hidden_act: Activation = "gelu"

    @property
    def rotated(self) -> int:
        """Elements of a head that are rotated, a third of them by each place."""
        return 6 * (self.hidden_size // self.num_attention_heads // 3 // 2)


SPECS = {"minimax_m3_vl_vision": MiniMaxM3VisionSpec}


class VisionModel:
    """The tower. `grid`: rows and columns of patches of each image; without it the tower is loaded and not run."""

    def __init__(self, spec: MiniMaxM3VisionSpec, build: Builder, grid: tuple[int, int] | None = None):
        size, patch = spec.hidden_size, (spec.temporal_patch_size, spec.patch_size, spec.patch_size)
        self.spec, self.patch, self.lengths = spec, (-1, spec.num_channels, *patch), (grid[0] * grid[1],) if grid else ()
        self.proj = build.convolution("embeddings.proj", spec.num_channels, size, patch, spec.patch_size, bias=False)
        self.pre_layrnorm = build.layer_norm("pre_layrnorm", size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build, self.lengths, rotate_part))
        self.buffers = [build.buffer(name, (spec.rotated // 6,), dtypes.float32) for name in ("inv_freq", "original_inv_freq")]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Last hidden states, [patches, width]."""
        tape, patches, weight = pixels.tape, pixels.shape[0], self.proj.weight
        embeds = to(self._embedded(pixels), weight.dtype)
        ends = empty(tape, (patches // sum(self.lengths) + 1,), dtypes.int32, "constant_pad_nd")
        places = empty(tape, (patches, 3), dtypes.int64, "cat")
        cos, sin = (empty(tape, (patches, self.spec.rotated), embeds.dtype, name) for name in ("cos", "sin"))
        hidden = self.pre_layrnorm(embeds)
        for layer in self.layers:
            hidden = layer(hidden, ends, cos, sin)
        del places, ends, cos, sin
        return hidden

    def _embedded(self, pixels: Tensor) -> Tensor:
        x = reshape(pixels, self.patch)
        x = reshape(self.proj(to(x, self.proj.weight.dtype)), (-1, self.spec.hidden_size))
        return x


HEADS = {"features": counted(VisionModel)}
