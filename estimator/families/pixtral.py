"""Pixtral's vision tower: layers of the Llama kind over the patches of all images in one row, each of which sees its own image.

Rotary positions are in two dimensions. After transformers' modeling_pixtral.py (5.23).
"""

from __future__ import annotations

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.modules import ACTIVATIONS, rotate
from estimator.families.spec import Depth, Probability, Size
from estimator.families.towers import Side, SquareTowerSpec
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, mul, to
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, contiguous, reshape, transpose, unbind, unsqueeze


class PixtralVisionSpec(SquareTowerSpec):
    """`image_size`: an image's longer side, at most; its proportions are kept."""

    hidden_size: Size = 1024
    intermediate_size: Size = 4096
    num_hidden_layers: Depth = 24
    num_attention_heads: Size = 16
    image_size: Side = 1024
    attention_dropout: Probability = 0.0


SPECS = {"pixtral": PixtralVisionSpec}


class SelfAttention:
    def __init__(self, spec: PixtralVisionSpec, build: Builder):
        size, self.heads = spec.hidden_size, spec.num_attention_heads
        self.k_proj = build.linear("attention.k_proj", size, size)
        self.v_proj = build.linear("attention.v_proj", size, size)
        self.q_proj = build.linear("attention.q_proj", size, size)
        self.o_proj = build.linear("attention.o_proj", size, size)
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0, causal=False)

    def __call__(self, hidden: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
        row, patches, size = hidden.shape
        heads = (row, patches, self.heads, size // self.heads)
        q = self.q_proj(hidden)
        k = self.k_proj(hidden)
        v = self.v_proj(hidden)
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        q, k = rotate(q, k, cos, sin)
        out, weights = self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (row, patches, -1)))
        out = self.o_proj(out)
        return out, weights


class MLP:
    def __init__(self, spec: PixtralVisionSpec, build: Builder):
        size, width = spec.hidden_size, spec.intermediate_size
        self.activation = ACTIVATIONS[spec.hidden_act]
        self.gate_proj = build.linear("feed_forward.gate_proj", size, width)
        self.up_proj = build.linear("feed_forward.up_proj", size, width)
        self.down_proj = build.linear("feed_forward.down_proj", width, size)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(mul(self.activation(self.gate_proj(x)), self.up_proj(x)))


class Layer:
    def __init__(self, spec: PixtralVisionSpec, build: Builder):
        self.attention_norm = build.rms_norm("attention_norm", spec.hidden_size)
        self.feed_forward = MLP(spec, build)
        self.attention = SelfAttention(spec, build)
        self.ffn_norm = build.rms_norm("ffn_norm", spec.hidden_size)

    def __call__(self, hidden: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        residual = hidden
        out = self.attention_norm(hidden)
        out, _ = self.attention(out, mask, cos, sin)
        out = add(residual, out)
        residual = out
        out = self.ffn_norm(out)
        out = self.feed_forward(out)
        return add(residual, out)


class VisionModel:
    """The tower (`PixtralVisionModel`)."""

    def __init__(self, spec: PixtralVisionSpec, build: Builder):
        size, patch = spec.hidden_size, (spec.patch_size, spec.patch_size)
        self.head_dim = size // spec.num_attention_heads
        self.patch_conv = build.convolution("patch_conv", spec.num_channels, size, patch, spec.patch_size, bias=False, first=True)
        self.ln_pre = build.rms_norm("ln_pre", size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build), "transformer.layers")
        self.buffers = [build.buffer(name, (self.head_dim // 2,), dtypes.float32) for name in ("inv_freq", "original_inv_freq")]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Last hidden states, [1, patches of all images, width]. Pixels are [images, channels, height, width]."""
        tape = pixels.tape
        grids = unbind(self.patch_conv(to(pixels, self.patch_conv.weight.dtype)), 0)
        embeds = unsqueeze(cat([transpose(reshape(grid, (grid.shape[0], -1)), 0, 1) for grid in grids], 0), 0)
        embeds = self.ln_pre(embeds)
        patches = embeds.shape[1]
        rows, columns = (empty(tape, (side,), dtypes.int64, "arange") for side in grids[-1].shape[1:])  # of the last image
        places = empty(tape, (patches, 2), dtypes.int64, "cat")
        cos, sin = (empty(tape, (1, patches, self.head_dim), embeds.dtype, name) for name in ("cos", "sin"))
        mask = block_mask(tape, patches, embeds.dtype)
        hidden = embeds
        for layer in self.layers:
            hidden = layer(hidden, mask, cos, sin)
        del grids, rows, columns, places
        return hidden


def block_mask(tape: Tape, patches: int, dtype: DType) -> Tensor:
    """Which patches are of one image, in numbers that are added (`generate_block_attention_mask`)."""
    return reshape(empty(tape, (patches, patches), dtype, "full"), (1, 1, patches, patches))


HEADS = {"features": counted(VisionModel)}
