"""The vision towers of GLM-4.1V, 4.5V and 4.6V, and of GLM-OCR: Qwen2.5-VL's blocks on whole images, learned positions that are
interpolated (but for GLM-OCR's), and squares of patches that a convolution makes one.

After transformers' modeling_glm4v.py and modeling_glm_ocr.py (5.23).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.modules import ACTIVATIONS
from estimator.families.qwen_vl_tower import SelfAttention
from estimator.families.qwen_vl_vision import VisionSpec
from estimator.families.spec import Activation, Depth, Size, called
from estimator.families.towers import Side
from estimator.tape import dtypes
from estimator.tape.pointwise import add, gelu, mul, to
from estimator.tape.pooling import grid_sample
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import permute, reshape, unsqueeze


class Glm4vVisionSpec(VisionSpec):
    """`out_hidden_size`: width of the feed-forward layers, and of what the language model gets; `intermediate_size`: of the
    merger's."""

    modelled = {"attention_dropout": (0, 0.0)}
    hooked = False
    placed: ClassVar[bool] = True
    """Whether it has learned positions, and a norm before them."""

    num_hidden_layers: Depth = called("depth", 24)
    num_attention_heads: Size = called("num_heads", 12)
    hidden_size: Size = 1536
    intermediate_size: Size = 13696
    out_hidden_size: Size = 4096
    hidden_act: Activation = "silu"
    image_size: Side = 336
    attention_bias: bool = False

    @model_validator(mode="after")
    def _patches(self) -> Glm4vVisionSpec:
        if self.image_size < self.patch_size:
            raise ValueError(f"patch_size {self.patch_size} is larger than image_size {self.image_size}")
        return self

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.hidden_size, self.out_hidden_size, self.out_hidden_size

    @property
    def side(self) -> int:
        """Learned positions of a row."""
        return self.image_size // self.patch_size

    @property
    def attention_biases(self) -> tuple[bool, bool]:
        return self.attention_bias, False

    @property
    def mlp_bias(self) -> bool:
        """Whether feed-forward layers have biases."""
        return False

    @property
    def merged(self) -> int:
        """Width of the middle of the merger's feed-forward layer."""
        return self.intermediate_size


class GlmOcrVisionSpec(Glm4vVisionSpec):
    """`intermediate_size`: width of the feed-forward layers."""

    modelled = Glm4vVisionSpec.modelled
    placed, normed_heads = False, True

    num_attention_heads: Size = called("num_heads", 16)
    hidden_size: Size = 1024
    intermediate_size: Size = 4096
    out_hidden_size: Size = 1536
    attention_bias: bool = True

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.hidden_size, self.intermediate_size, self.out_hidden_size

    @property
    def attention_biases(self) -> tuple[bool, bool]:
        return self.attention_bias, self.attention_bias

    @property
    def mlp_bias(self) -> bool:
        return self.attention_bias

    @property
    def merged(self) -> int:
        return self.out_hidden_size * self.num_channels


SPECS: dict[str, type[VisionSpec]] = {
    "glm4v_vision": Glm4vVisionSpec,
    "glm4v_moe_vision": Glm4vVisionSpec,
    "glm_ocr_vision": GlmOcrVisionSpec,
}


class GatedMLP:
    """Called `name`, from `size` through `width`."""

    def __init__(self, spec: Glm4vVisionSpec, build: Builder, name: str, size: int, width: int, bias: bool = False):
        self.activation = ACTIVATIONS[spec.hidden_act]
        self.gate_proj = build.linear(name + "gate_proj", size, width, bias)
        self.up_proj = build.linear(name + "up_proj", size, width, bias)
        self.down_proj = build.linear(name + "down_proj", width, size, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(mul(self.activation(self.gate_proj(x)), self.up_proj(x)))


class Block:
    def __init__(self, spec: Glm4vVisionSpec, build: Builder, patches: int):
        size, width, _ = spec.widths
        self.norm1 = build.rms_norm("norm1", size)
        self.norm2 = build.rms_norm("norm2", size)
        self.attn = SelfAttention(spec, build, (patches,))
        self.mlp = GatedMLP(spec, build, "mlp.", size, width, spec.mlp_bias)

    def __call__(self, hidden: Tensor, ends: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        out = add(hidden, self.attn(self.norm1(hidden), cos, sin))
        return add(out, self.mlp(self.norm2(out)))


class Merger:
    """A layer, a norm, and a gated feed-forward layer (`Glm4vVisionPatchMerger`)."""

    def __init__(self, spec: Glm4vVisionSpec, build: Builder):
        size = spec.out_hidden_size
        self.proj = build.linear("merger.proj", size, size)
        self.post_projection_norm = build.layer_norm("merger.post_projection_norm", size)
        self.mlp = GatedMLP(spec, build, "merger.", size, spec.merged)

    def __call__(self, x: Tensor) -> Tensor:
        out = self.proj(x)
        out = gelu(self.post_projection_norm(out))
        return self.mlp(out)


class VisionModel:
    """The tower (`Glm4vVisionModel`). `grid`: rows and columns of patches of each image; without it the tower is loaded and not
    run."""

    def __init__(self, spec: Glm4vVisionSpec, build: Builder, grid: tuple[int, int] | None = None):
        size, merge = spec.hidden_size, spec.spatial_merge_size
        patch = spec.temporal_patch_size, spec.patch_size, spec.patch_size
        self.spec, self.patch = spec, (-1, spec.num_channels, *patch)
        places = "embeddings.position_embedding.weight", (spec.side**2, size)
        self.position_embedding = build.parameter(*places) if spec.placed else None
        self.proj = build.convolution("patch_embed.proj", spec.num_channels, size, patch, spec.patch_size, first=False)
        frequencies = (-(-(size // spec.num_attention_heads // 2) // 2),)
        self.buffers = [build.buffer(name, frequencies, dtypes.float32) for name in ("inv_freq", "original_inv_freq")]
        self.patches = grid[0] * grid[1] if grid else 0
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Block(spec, build, self.patches), "blocks")
        self.merger = Merger(spec, build)
        self.post_conv_layernorm = build.rms_norm("post_conv_layernorm", size) if spec.placed else None
        self.downsample = build.convolution("downsample", size, spec.out_hidden_size, (merge, merge), merge, first=False)
        self.post_layernorm = build.rms_norm("post_layernorm", size)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Squares of patches, [patches / squares, width], and what the language model gets of them."""
        tape, patches = pixels.tape, pixels.shape[0]
        images = patches // self.patches
        places = empty(tape, (patches, 2), dtypes.int64, "cat")
        ends = empty(tape, (images + 1,), dtypes.int32, "constant_pad_nd")
        hidden = self._embedded(pixels)
        if self.post_conv_layernorm is not None:
            hidden = self.post_conv_layernorm(hidden)
        cos, sin = self._tables(tape, patches)
        lengths = None
        if self.position_embedding is not None:
            lengths = empty(tape, (images,), dtypes.int32, "sub")
            hidden = self._placed(hidden, self.position_embedding)
        for layer in self.layers:
            hidden = layer(hidden, ends, cos, sin)
        hidden = self.post_layernorm(hidden)
        hidden = self._downsampled(hidden)
        merged = self.merger(hidden)
        del places, ends, cos, sin, lengths
        return hidden, merged

    def _embedded(self, pixels: Tensor) -> Tensor:
        x = reshape(pixels, self.patch)
        return reshape(self.proj(to(x, self.proj.weight.dtype)), (-1, self.spec.hidden_size))

    def _tables(self, tape: Tape, patches: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of rows and columns, in float32."""
        shape = (patches, self.spec.hidden_size // self.spec.num_attention_heads)
        return empty(tape, shape, dtypes.float32, "cos"), empty(tape, shape, dtypes.float32, "sin")

    def _placed(self, hidden: Tensor, learned: Tensor) -> Tensor:
        """With learned positions, interpolated at the place of each patch (`Glm4vVisionEmbeddings`)."""
        tape, patches, side = hidden.tape, hidden.shape[0], self.spec.side
        square = permute(reshape(learned, (side, side, -1)), (2, 0, 1))
        square = to(unsqueeze(square, 0), dtypes.float32)
        counted = [empty(tape, (patches,), dtypes.int64, name) for name in ("arange", "sum")]
        sizes = [empty(tape, (patches,), dtypes.float32, "_to_copy") for _ in ("rows", "columns")]
        normed = [empty(tape, (patches,), dtypes.float32, "sub") for _ in ("rows", "columns")]
        grid = empty(tape, (1, patches, 1, 2), dtypes.float32, "stack")
        sampled = grid_sample(square, grid)
        positions = to(permute(reshape(sampled, (-1, patches)), (1, 0)), learned.dtype)
        out = add(hidden, positions)
        del counted, sizes, normed
        return out

    def _downsampled(self, hidden: Tensor) -> Tensor:
        merge = self.spec.spatial_merge_size
        squares = permute(reshape(hidden, (-1, merge, merge, hidden.shape[-1])), (0, 3, 1, 2))
        return reshape(self.downsample(squares), (-1, self.spec.out_hidden_size))


HEADS = {"features": counted(VisionModel)}
