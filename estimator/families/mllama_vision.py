"""Llama 3.2 Vision's tower: an image in up to four tiles, encoded by layers of which the last ones are gated.

After transformers' modeling_mllama.py (5.23).
"""

from __future__ import annotations

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.layers import Checkpointing, Layers
from estimator.families.spec import Depth, Size, called
from estimator.families.towers import Side, SquareTowerSpec
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, add_scalar, mul, mul_scalar, neg, tanh, to
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import (
    cat,
    contiguous,
    expand,
    narrow,
    pad,
    reshape,
    stack_last,
    transpose,
    unsqueeze,
)

RATIOS = 8
"""Ways in which up to four tiles are arranged (`supported_aspect_ratios`)."""


class MllamaVisionSpec(SquareTowerSpec):
    """`num_global_layers` are gated, after `num_hidden_layers` that are not."""

    hidden_size: Size = 1280
    intermediate_size: Size = 5120
    num_hidden_layers: Depth = 32
    num_global_layers: Depth = 8
    num_attention_heads: Size = called("attention_heads", 16)
    image_size: Side = 448
    patch_size: Side = 14
    vision_output_dim: Size = 7680
    max_num_tiles: Size = 4
    supported_aspect_ratios: tuple[tuple[int, int], ...] | None = None
    intermediate_layers_indices: tuple[int, ...] = (3, 7, 15, 23, 30)

    @property
    def depth(self) -> int:
        return self.num_hidden_layers + self.num_global_layers

    @property
    def fits(self) -> bool:
        """Whether it gives what `vision_output_dim` says."""
        read = self.intermediate_layers_indices
        there = all(-self.num_hidden_layers <= i < self.num_hidden_layers for i in read)
        return there and self.hidden_size * (1 + len(read)) == self.vision_output_dim

    @property
    def arrangements(self) -> int:
        """Ways in which an image can be cut into tiles, and none."""
        return 1 + (RATIOS if self.supported_aspect_ratios is None else len(self.supported_aspect_ratios))


SPECS = {"mllama_vision_model": MllamaVisionSpec}


class PositionEmbedding:
    """Positions of patches, and of patches in tiles of an image of some proportions (`MllamaPrecomputedPositionEmbedding`)."""

    def __init__(self, spec: MllamaVisionSpec, build: Builder):
        size, self.shape = spec.hidden_size, (spec.max_num_tiles, spec.patches + 1, spec.hidden_size)
        name, (tiles, tokens, _) = "gated_positional_embedding", self.shape
        self.gate = build.parameter(name + ".gate", (1,))
        self.embedding = build.parameter(name + ".embedding", (tokens, size))
        self.tile_embedding = build.embedding(name + ".tile_embedding", spec.arrangements, tiles * tokens * size, first=False)

    def __call__(self, hidden: Tensor, ratios: Tensor) -> Tensor:
        positions = mul(add_scalar(neg(tanh(self.gate))), self.embedding)
        hidden = add(hidden, positions)
        tiles = reshape(self.tile_embedding(ratios), (hidden.shape[0], *self.shape))
        gated = mul(tanh(self.gate), tiles)
        hidden = add(hidden, gated)
        del positions, tiles, gated
        return hidden


class RatioEmbedding:
    """What an image of some proportions adds to each tile (`MllamaPrecomputedAspectRatioEmbedding`)."""

    def __init__(self, spec: MllamaVisionSpec, build: Builder, name: str):
        self.tiles, self.size = spec.max_num_tiles, spec.hidden_size
        self.gate = build.parameter(name + ".gate", (1,))
        self.embedding = build.embedding(name + ".embedding", spec.arrangements, self.tiles * self.size, first=False)

    def __call__(self, hidden: Tensor, ratios: Tensor) -> Tensor:
        embeds = reshape(self.embedding(ratios), (-1, self.tiles, 1, self.size))
        embeds = mul(embeds, tanh(self.gate))
        return add(hidden, embeds)


class EncoderLayer:
    """CLIP's layer without biases in attention; `gated`: what it adds is multiplied by a number."""

    def __init__(self, spec: MllamaVisionSpec, build: Builder, gated: bool):
        self.gates = [build.parameter(name, (1,)) for name in ("gate_attn", "gate_ffn") if gated]
        size, self.head_dim = spec.hidden_size, spec.hidden_size // spec.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            build.linear(f"self_attn.{name}_proj", size, size) for name in ("q", "k", "v", "o")
        )
        self.attend = Attention(build.attention, causal=False)
        self.mlp = TwoLayerMLP(spec, build, ("fc1", "fc2"), bias=True)
        self.input_layernorm = build.layer_norm("input_layernorm", size)
        self.post_attention_layernorm = build.layer_norm("post_attention_layernorm", size)

    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self._attended(out, mask)
        if self.gates:
            out = mul(tanh(self.gates[0]), out)
        out = add(residual, out)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        if self.gates:
            out = mul(tanh(self.gates[1]), out)
        return add(residual, out)

    def _attended(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        images, tokens, _ = hidden.shape
        heads = (images, tokens, -1, self.head_dim)
        q = self.q_proj(hidden)
        k = self.k_proj(hidden)
        v = self.v_proj(hidden)
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        out, weights = self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (images, tokens, -1)))
        out = self.o_proj(out)
        return out, weights


class VisionModel:
    """The tower (`MllamaVisionModel`), of which transformers recomputes no layer in backward. The hidden states of all layers
    live to its end, so that each has a slot of its own."""

    def __init__(self, spec: MllamaVisionSpec, build: Builder):
        size, patch = spec.hidden_size, (spec.patch_size, spec.patch_size)
        self.spec = spec
        self.class_embedding = build.parameter("class_embedding", (size,))
        self.patch_embedding = build.convolution(
            "patch_embedding", spec.num_channels, size, patch, spec.patch_size, bias=False, first=True
        )
        self.positions = PositionEmbedding(spec, build)
        self.before, self.after = (RatioEmbedding(spec, build, f"{when}_tile_positional_embedding") for when in ("pre", "post"))
        self.layernorm_pre = build.layer_norm("layernorm_pre", size)
        self.layernorm_post = build.layer_norm("layernorm_post", size)
        recomputed, build.checkpointing = build.checkpointing, Checkpointing()
        self.layers = build.layers(
            range(spec.num_hidden_layers), lambda _: EncoderLayer(spec, build, gated=False), "transformer.layers"
        )
        self.global_layers = build.layers(
            range(spec.num_global_layers), lambda _: EncoderLayer(spec, build, gated=True), "global_transformer.layers"
        )
        build.checkpointing = recomputed

    def __call__(self, pixels: Tensor, ratios: Tensor) -> Tensor:
        """Hidden states side by side, [images, tiles, tokens, width], of tiles [images, tiles, channels, height, width]."""
        images, tiles, *shape = pixels.shape
        spec, tokens, size = self.spec, self.spec.patches + 1, self.spec.hidden_size
        pixels = reshape(pixels, (images * tiles, *shape))
        patches = self.patch_embedding(to(pixels, self.patch_embedding.weight.dtype))
        hidden = transpose(reshape(patches, (images * tiles, size, -1)), 1, 2)
        hidden = self.before(reshape(hidden, (images, tiles, -1, size)), ratios)
        hidden = self._with_class(reshape(hidden, (images * tiles, -1, size)))
        hidden = self.positions(reshape(hidden, (images, tiles, tokens, size)), ratios)
        hidden = self.layernorm_pre(hidden)
        missing = -tokens % 8
        hidden = pad(hidden, 2, 0, missing)
        length = tokens + missing
        mask = self._mask(images, length)
        hidden = reshape(hidden, (images, -1, size))
        states = self._through(self.layers, hidden, mask)
        hidden = states[-1]
        hidden = self.layernorm_post(hidden)
        hidden = self.after(reshape(hidden, (images, tiles, length, size)), ratios)
        hidden = reshape(hidden, (images, tiles * length, size))
        last = self._through(self.global_layers, hidden, mask)
        hidden = narrow(reshape(last[-1], (images, tiles, length, size)), 2, tokens)
        between = stack_last([states[i] for i in spec.intermediate_layers_indices])
        between = narrow(reshape(between, (images, tiles, length, -1)), 2, tokens)
        joined = cat((hidden, between), -1)
        del patches, mask, states, last, hidden, between, pixels
        return joined

    def _through(self, layers: Layers, hidden: Tensor, mask: Tensor) -> list[Tensor]:
        states: list[Tensor] = []
        for layer in layers:
            hidden = layer(hidden, mask)
            states.append(hidden)
        return states

    def _with_class(self, hidden: Tensor) -> Tensor:
        classes = expand(self.class_embedding, (hidden.shape[0], 1, hidden.shape[-1]))
        return cat((classes, hidden), 1)

    def _mask(self, images: int, length: int) -> Tensor:
        """Which patches see which, in numbers that are added (`_prepare_aspect_ratio_attention_mask`)."""
        rows = self.spec.max_num_tiles * length
        tape, dtype = self.class_embedding.tape, self.class_embedding.dtype
        column = empty(tape, (images, rows, 1), dtype, "rsub")
        square = mul_scalar(matmul(column, transpose(column, 1, 2)))
        return unsqueeze(square, 1)


HEADS = {"features": counted(VisionModel)}
