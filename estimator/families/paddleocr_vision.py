"""PaddleOCR-VL's vision tower (NaViT of SigLIP): patches of all images in one row, each of which sees its own image, and a square
of learned positions that is interpolated at the place of each patch.

After transformers' modeling_paddleocr_vl.py and vision_utils.py (5.23).
"""

from __future__ import annotations

from typing import Any

from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.qwen_vl_tower import TAPS, Layer
from estimator.families.qwen_vl_vision import EvenVisionSpec
from estimator.families.spec import Activation, Depth, Size
from estimator.families.towers import Side
from estimator.tape import dtypes
from estimator.tape.layout import Shape
from estimator.tape.pointwise import add, mul, to
from estimator.tape.reduction import sum_dim
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape, unsqueeze


class PaddleOCRVisionSpec(EvenVisionSpec):
    """A patch is of one frame."""

    modelled = {"attention_dropout": (0, 0.0), "temporal_patch_size": (1,)}

    hidden_size: Size = 1152
    intermediate_size: Size = 4304
    num_hidden_layers: Depth = 27
    image_size: Side = 384
    temporal_patch_size: Side = 1
    hidden_act: Activation = "gelu_pytorch_tanh"

    @property
    def patch_shape(self) -> Shape:
        return self.num_channels, self.patch_size, self.patch_size

    @property
    def positions(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    def config(self) -> dict[str, Any]:
        return {name: value for name, value in super().config().items() if name != "temporal_patch_size"}


SPECS = {"paddleocr_vl_vision": PaddleOCRVisionSpec}


class VisionModel:
    """The tower. `grid`: rows and columns of patches of each image; without it the tower is loaded and not run."""

    def __init__(self, spec: PaddleOCRVisionSpec, build: Builder, grid: tuple[int, int] | None = None):
        size, patch = spec.hidden_size, (spec.patch_size, spec.patch_size)
        self.spec, self.lengths, self.head = spec, (grid[0] * grid[1],) if grid else (), size // spec.num_attention_heads
        self.proj = build.convolution("embeddings.patch_embedding", spec.num_channels, size, patch, spec.patch_size)
        self.position_embedding = build.embedding("embeddings.position_embedding", spec.positions, size, first=False)
        self.places = build.buffer("embeddings.position_ids", (1, spec.positions), dtypes.int64)
        self.layers = build.layers(
            spec.num_hidden_layers, lambda _: Layer(spec, build, self.lengths, norms_first=True), "encoder.layers"
        )
        self.buffers = [
            build.buffer(name, (-(-self.head // 2 // 2),), dtypes.float32) for name in ("inv_freq", "original_inv_freq")
        ]
        self.post_layernorm = build.layer_norm("post_layernorm", size)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Last hidden states, [patches, width]."""
        tape, (patches, *_) = pixels.tape, pixels.shape
        embeds = self._embedded(pixels)
        places = empty(tape, (patches, 2), dtypes.int64, "cat")
        ends = empty(tape, (patches // sum(self.lengths) + 1,), dtypes.int32, "constant_pad_nd")
        cos, sin = (empty(tape, (patches, self.head), dtypes.float32, name) for name in ("cos", "sin"))
        hidden = embeds
        for layer in self.layers:
            hidden = layer(hidden, ends, cos, sin)
        del places, ends, cos, sin
        return self.post_layernorm(hidden)

    def _embedded(self, pixels: Tensor) -> Tensor:
        """`PaddleOCRVisionEmbeddings`."""
        tape, patches = pixels.tape, pixels.shape[0]
        embeds = reshape(self.proj(pixels), (patches, -1))
        taps = empty(tape, (patches, TAPS), dtypes.int64, "add")
        weights = empty(tape, (patches, TAPS), dtypes.float32, "mul")
        positions = sum_dim(mul(self.position_embedding(taps), unsqueeze(weights, 2)), 1)
        embeds = add(embeds, to(positions, embeds.dtype))
        del taps, weights, positions
        return embeds


HEADS = {"features": counted(VisionModel)}
