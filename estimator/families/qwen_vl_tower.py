"""The forward pass of the vision towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

Patches of all images lie in one row; attention runs on each image, or each window of one, by itself. After transformers'
modeling_qwen2_vl.py, modeling_qwen2_5_vl.py, modeling_qwen3_vl.py and vision_utils.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.modules import ACTIVATIONS, Module, rotated
from estimator.families.spec import Activation
from estimator.tape import dtypes
from estimator.tape.pointwise import add, gelu, mul, to
from estimator.tape.reduction import sum_dim
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, contiguous, index, permute, reshape, split, transpose, unbind, unsqueeze

if TYPE_CHECKING:
    from estimator.families.qwen_vl_vision import VisionSpec

WHOLE, WINDOW = "whole", "window"
"""What a patch of a layer sees: its image, or a window of it."""
TAPS = 4
"""Learned positions that a patch's is interpolated from."""


class BlockSpec(Protocol):
    """What a spec says of a tower's blocks, as `VisionSpec` does."""

    @property
    def width(self) -> int: ...
    @property
    def widths(self) -> tuple[int, int, int]: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def hidden_act(self) -> Activation: ...
    @property
    def attention_names(self) -> tuple[str, ...]: ...
    @property
    def attention_biases(self) -> tuple[bool, bool]: ...
    @property
    def normed_heads(self) -> bool: ...
    @property
    def block_names(self) -> tuple[str, str]: ...
    @property
    def gated(self) -> bool: ...


Turn = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(queries, keys, cosines, sines) -> rotated queries and keys."""


class SelfAttention:
    """`lengths`: patches that see each other, in each image. What is not FlashAttention's is run part by part. `turn`: rotates
    queries and keys, [patches, heads, size]."""

    def __init__(self, spec: BlockSpec, build: Builder, lengths: Sequence[int], turn: Turn | None = None):
        size = spec.width
        self.heads, self.lengths, self.turn = spec.num_attention_heads, lengths, turn or rotate
        self.make_layers(spec, build)
        head = size // self.heads
        self.q_norm, self.k_norm = (build.rms_norm(f"attn.{x}_norm", head) if spec.normed_heads else None for x in "qk")
        self.attend = Attention(build.attention, causal=False)

    def make_layers(self, spec: BlockSpec, build: Builder) -> None:
        """The linear layers, in the order in which the real module makes them."""
        size, (query_bias, output_bias) = spec.width, spec.attention_biases
        *names, output = spec.attention_names
        self.inputs = [build.linear(name, size, 3 * size // len(names), query_bias) for name in names]
        self.proj = build.linear(output, size, size, output_bias)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return self.weighed(hidden, cos, sin, weighs=False)[0]

    def weighed(self, hidden: Tensor, cos: Tensor, sin: Tensor, weighs: bool = True) -> tuple[Tensor, list[Tensor | None]]:
        """The same, and where it `weighs` the weights of each part, which `eager` has."""
        patches = hidden.shape[0]
        q, k, v = self.projected(hidden)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        q, k = self.turn(q, k, cos, sin)
        q, k, v = (unsqueeze(transpose(x, 0, 1), 0) for x in (q, k, v))
        sizes = [*self.lengths] * (patches // sum(self.lengths))
        lengths = empty(hidden.tape, (len(sizes),), dtypes.int32, "sub")
        splits = [split(x, sizes, 2) for x in (q, k, v)]
        outs: list[Tensor] = []
        weights: list[Tensor | None] = []
        for part_q, part_k, part_v in zip(*splits, strict=True):
            out, weight = self.attend(part_q, part_k, part_v, None)
            outs.append(out)
            if weighs:
                weights.append(weight)
            del out, weight
        out = cat(outs, 1)
        out = contiguous(reshape(out, (patches, -1)))
        out = self.proj(out)
        del lengths
        return out, weights

    def projected(self, hidden: Tensor) -> list[Tensor]:
        """Queries, keys and values, [patches, heads, size]."""
        patches = hidden.shape[0]
        if len(self.inputs) > 1:
            return [reshape(layer(hidden), (patches, self.heads, -1)) for layer in self.inputs]
        (qkv,) = self.inputs
        return unbind(permute(reshape(qkv(hidden), (patches, 3, self.heads, -1)), (1, 0, 2, 3)), 0)


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys, [patches, heads, size], rotated in float32 (`apply_rotary_pos_emb_vision`)."""
    wide_q, wide_k = to(q, dtypes.float32), to(k, dtypes.float32)
    c, s = to(unsqueeze(cos, 1), dtypes.float32), to(unsqueeze(sin, 1), dtypes.float32)
    rotated_q = rotated(wide_q, c, s)
    rotated_k = rotated(wide_k, c, s)
    rotated_q = to(rotated_q, q.dtype)
    rotated_k = to(rotated_k, k.dtype)
    return rotated_q, rotated_k


class MLP:
    def __init__(self, build: Builder, names: tuple[str, str], inputs: int, width: int, outputs: int, activation: Module):
        self.activation = activation
        self.fc1 = build.linear(names[0], inputs, width, True)
        self.fc2 = build.linear(names[1], width, outputs, True)

    def __call__(self, x: Tensor) -> Tensor:
        out = self.fc1(x)
        out = self.activation(out)
        return self.fc2(out)


class GatedMLP:
    def __init__(self, spec: BlockSpec, build: Builder):
        size, width, _ = spec.widths
        self.activation = ACTIVATIONS[spec.hidden_act]
        self.gate_proj = build.linear("mlp.gate_proj", size, width, True)
        self.up_proj = build.linear("mlp.up_proj", size, width, True)
        self.down_proj = build.linear("mlp.down_proj", width, size, True)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(mul(self.activation(self.gate_proj(x)), self.up_proj(x)))


def norm(spec: BlockSpec, build: Builder, name: str, size: int) -> Module:
    return build.rms_norm(name, size) if spec.gated else build.layer_norm(name, size)


class Block:
    """`attention`: its kind."""

    def __init__(self, spec: BlockSpec, build: Builder, lengths: Sequence[int], attention: type[SelfAttention] = SelfAttention):
        size, width, _ = spec.widths
        self.norm1 = norm(spec, build, "norm1", size)
        self.norm2 = norm(spec, build, "norm2", size)
        self.attn = attention(spec, build, lengths)
        self.mlp: Module = (
            GatedMLP(spec, build) if spec.gated else MLP(build, spec.block_names, size, width, size, ACTIVATIONS[spec.hidden_act])
        )

    def __call__(self, hidden: Tensor, ends: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`ends`: where what sees each other ends, which attention computes lengths from."""
        out = add(hidden, self.attn(self.norm1(hidden), cos, sin))
        return add(out, self.mlp(self.norm2(out)))


class Layer:
    """A block in CLIP's order, which holds the weights of `eager` to its end (`MiniMaxM3VLVisionEncoderLayer`,
    `PaddleOCRVisionEncoderLayer`). `norms_first`: each norm is made before its block, as PaddleOCR-VL's are."""

    def __init__(
        self, spec: VisionSpec, build: Builder, lengths: Sequence[int], turn: Turn | None = None, norms_first: bool = False
    ):
        size, width, _ = spec.widths
        norms = [build.layer_norm("layer_norm1", size)] if norms_first else []
        self.self_attn = SelfAttention(spec, build, lengths, turn)
        norms.append(build.layer_norm("layer_norm2" if norms_first else "layer_norm1", size))
        self.mlp = MLP(build, ("mlp.fc1", "mlp.fc2"), size, width, size, ACTIVATIONS[spec.hidden_act])
        norms += [] if norms_first else [build.layer_norm("layer_norm2", size)]
        self.layer_norm1, self.layer_norm2 = norms

    def __call__(self, hidden: Tensor, ends: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`ends`: where what sees each other ends, which attention computes lengths from."""
        residual = hidden
        out = self.layer_norm1(hidden)
        out, _weights = self.self_attn.weighed(out, cos, sin)
        out = add(residual, out)
        residual = out
        out = self.layer_norm2(out)
        out = self.mlp(out)
        return add(residual, out)


class Merger:
    """Squares of patches, side by side, through two layers; `after`: they are normalised as squares."""

    def __init__(self, spec: VisionSpec, build: Builder, name: str, after: bool = False):
        size, _, given = spec.widths
        self.merged, self.after, self.walks = size * spec.spatial_merge_size**2, after, spec.walks
        self.norm = norm(spec, build, f"{name}.{spec.merger_norm}", self.merged if after else size)
        first, second = spec.merger_names
        self.mlp = MLP(build, (f"{name}.{first}", f"{name}.{second}"), self.merged, self.merged, given, gelu)

    def __call__(self, x: Tensor) -> Tensor:
        normed = self.norm(reshape(x, (-1, self.merged)) if self.after else x)
        normed = reshape(normed, (-1, self.merged))
        if not self.walks:
            return self.mlp(normed)
        normed = self.mlp.fc1(normed)
        normed = self.mlp.activation(normed)
        return self.mlp.fc2(normed)


class VisionModel:
    """The tower. `grid`: rows and columns of patches of each image; without it the tower is loaded and not run. `attention`: of
    its blocks."""

    def __init__(
        self,
        spec: VisionSpec,
        build: Builder,
        grid: tuple[int, int] | None = None,
        attention: type[SelfAttention] = SelfAttention,
    ):
        size = spec.width
        patch = spec.temporal_patch_size, spec.patch_size, spec.patch_size
        self.spec, self.patch = spec, (-1, spec.num_channels, *patch)
        deep = self._deep(build) if spec.deep_first else None
        self.proj = build.convolution(
            "patch_embed.proj", spec.num_channels, size, patch, spec.patch_size, bias=spec.biased, first=spec.hooked
        )
        self.pos_embed = build.embedding("pos_embed", spec.positions, size, first=False) if spec.positions else None
        frequencies = (-(-(size // spec.num_attention_heads // 2) // 2),)
        self.buffers = [build.buffer(name, frequencies, dtypes.float32) for name in ("inv_freq", "original_inv_freq")]
        self.whole: tuple[int, ...] = (grid[0] * grid[1],) if grid else ()
        self.windows = spec.window_lengths(*grid) if grid else ()
        kinds = spec.kinds
        self.layers = build.layers(
            kinds, lambda kind: Block(spec, build, self.windows if kind == WINDOW else self.whole, attention), "blocks"
        )
        self.merger = Merger(spec, build, "merger")
        self.deep = self._deep(build) if deep is None else deep

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Last hidden states, [patches, width]; what the language model gets of them; and of the layers that it reads, too."""
        tape, patches = pixels.tape, pixels.shape[0]
        images = patches // self.whole[0]
        taps, weights = self._taps(tape, patches)
        places = empty(tape, (patches, 2), dtypes.int64, "cat")
        ends = {WHOLE: empty(tape, (images + 1,), dtypes.int32, "constant_pad_nd")}
        if self.windows:
            ends[WINDOW] = empty(tape, (images * len(self.windows) + 1,), dtypes.int32, "unique_consecutive")
        hidden = self._embedded(pixels)
        if self.windows:
            hidden = self._ordered(hidden)
        positions = None
        if taps is not None and weights is not None:
            positions = self._positions(taps, weights)
            hidden = add(hidden, to(positions, hidden.dtype))
        cos, sin = self._tables(tape, patches)
        read = []
        for kind, layer in self.layers.by_kind():
            hidden = layer(hidden, ends[WINDOW if kind == WINDOW else WHOLE], cos, sin)
            if kind in self.deep:
                read.append(self.deep[kind](hidden))
        merged = self.merger(hidden)
        if self.windows:
            merged = index(merged, (), merged.shape)
        del taps, weights, positions, places, ends, cos, sin
        return hidden, merged, *read

    def _deep(self, build: Builder) -> dict[int, Merger]:
        """A merger for each layer that the language model reads."""
        spec = self.spec
        return {layer: Merger(spec, build, f"{spec.deep_name}.{i}", after=True) for i, layer in enumerate(spec.read)}

    def _embedded(self, pixels: Tensor) -> Tensor:
        x = reshape(pixels, self.patch)
        return reshape(self.proj(to(x, self.proj.weight.dtype)), (-1, self.spec.width))

    def _taps(self, tape: Tape, patches: int) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Which learned positions a patch's is interpolated from, and their weights."""
        if self.pos_embed is None:
            return None, None
        shape = (patches, TAPS)
        return empty(tape, shape, dtypes.int64, "add"), empty(tape, shape, dtypes.float32, "mul")

    def _positions(self, taps: Tensor, weights: Tensor) -> Tensor:
        """Learned positions, [patches, width]."""
        assert self.pos_embed is not None
        return sum_dim(mul(self.pos_embed(taps), unsqueeze(weights, 2)), 1)

    def _tables(self, tape: Tape, patches: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of rows and columns, in float32, in the order of the patches."""
        shape = (patches, self.spec.width // self.spec.num_attention_heads)
        cos, sin = empty(tape, shape, dtypes.float32, "cos"), empty(tape, shape, dtypes.float32, "sin")
        if not self.windows:
            return cos, sin
        ordered_cos = self._ordered(cos)
        return ordered_cos, self._ordered(sin)

    def _ordered(self, x: Tensor) -> Tensor:
        """Rows in the order of the windows, square by square. The order lies in the host's memory."""
        unit = self.spec.spatial_merge_size**2
        squares = reshape(x, (x.shape[0] // unit, unit, -1))
        return reshape(index(squares, (), squares.shape), x.shape)
