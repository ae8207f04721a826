"""Gemma 4's vision tower: patches as one linear layer sees them, places by row and column, and squares that become one token.

After transformers' modeling_gemma4.py (5.23).
"""

from __future__ import annotations

from estimator.contract.errors import Contradiction
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.decoder_layers import Sandwich
from estimator.families.gemma4_per_layer import RMSNorm
from estimator.families.modules import ACTIVATIONS, Module, rotated
from estimator.families.spec import Activation, Depth, Probability, Size, called
from estimator.families.towers import TowerSpec
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.loss import embedding
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, add_scalar, clamp_between, mul, mul_scalar, sub, to, where
from estimator.tape.selection import masked_fill
from estimator.tape.tensor import Tensor, empty, like
from estimator.tape.views import cat, contiguous, index, reshape, select, split, transpose, unsqueeze


class Gemma4VisionSpec(TowerSpec):
    """`pooling_kernel_size`: patches along the side of a square that becomes one token. `standardize`: what it becomes is shifted
    and scaled. `use_clipped_linears`: what linear layers get and give is kept within bounds."""

    hidden_size: Size = 768
    intermediate_size: Size = 3072
    num_hidden_layers: Depth = 16
    num_attention_heads: Size = 12
    num_key_value_heads: Size = 12
    head_dim: Size = 64
    hidden_act: Activation = called("hidden_activation", "gelu_pytorch_tanh")
    attention_dropout: Probability = 0.0
    pooling_kernel_size: Size = 3
    position_embedding_size: Size = 10240
    use_clipped_linears: bool = False
    standardize: bool = False

    @property
    def patch_numbers(self) -> int:
        """Numbers of one patch, of all channels."""
        return 3 * self.patch_size**2


SPECS = {"gemma4_vision": Gemma4VisionSpec}
NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


class ClippedLinear:
    """A linear layer whose input and output are kept within bounds that are buffers (`Gemma4ClippableLinear`)."""

    def __init__(self, build: Builder, name: str, inputs: int, outputs: int):
        self.linear = build.linear(name + ".linear", inputs, outputs)
        bounds = [build.buffer(f"{name}.{bound}", (), build.dtype) for bound in ("input_min", "input_max")]
        self.given, self.made = (
            bounds,
            [build.buffer(f"{name}.{bound}", (), build.dtype) for bound in ("output_min", "output_max")],
        )

    def __call__(self, x: Tensor) -> Tensor:
        low, high = self.given
        out = clamp_between(x, low, high)
        out = self.linear(out)
        low, high = self.made
        return clamp_between(out, low, high)


def clippable(build: Builder, name: str, inputs: int, outputs: int, clips: bool) -> Module:
    """A linear layer of the towers, which all have their weights one module deeper. Raises `InvalidJob` where a pattern puts an
    adapter on what holds it, which PEFT refuses; all linear layers are those within."""
    if isinstance(getattr(getattr(build.adapter, "chosen", None), "names", None), str) and build.adapts(name):
        raise Contradiction(
            f"the pattern fits {name} of Gemma 4's towers, too, which holds a linear layer and is none: end it with .linear "
            r"there, or keep it to the language model, as .*language_model.*\.q_proj",
            "training.adapter.targets",
        )
    return ClippedLinear(build, name, inputs, outputs) if clips else build.linear(name + ".linear", inputs, outputs)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotary embedding of [images, patches, heads, size]: one half of each head by the column, the other by the row
    (`apply_multidimensional_rope`)."""
    half = x.shape[-1] // 2
    parts, cosines, sines = split(x, (half, half), 3), split(cos, (half, half), 2), split(sin, (half, half), 2)
    made = [rotated(parts[i], unsqueeze(cosines[i], 2), unsqueeze(sines[i], 2)) for i in range(2)]
    return cat(made, -1)


class SelfAttention:
    def __init__(self, spec: Gemma4VisionSpec, build: Builder):
        size, self.head_dim, clips = spec.hidden_size, spec.head_dim, spec.use_clipped_linears
        queries, keys = spec.num_attention_heads * self.head_dim, spec.num_key_value_heads * self.head_dim
        self.q_proj = clippable(build, "self_attn.q_proj", size, queries, clips)
        self.k_proj = clippable(build, "self_attn.k_proj", size, keys, clips)
        self.v_proj = clippable(build, "self_attn.v_proj", size, keys, clips)
        self.o_proj = clippable(build, "self_attn.o_proj", queries, size, clips)
        self.q_norm = RMSNorm(build, "self_attn.q_norm", self.head_dim)
        self.k_norm = RMSNorm(build, "self_attn.k_norm", self.head_dim)
        self.v_norm = RMSNorm(build, "self_attn.v_norm", self.head_dim, weighted=False)
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0, causal=False)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        images, patches, _ = hidden.shape
        heads = (images, patches, -1, self.head_dim)
        q = reshape(self.q_proj(hidden), heads)
        q = self.q_norm(q)
        q = turned(q, cos, sin)
        q = transpose(q, 1, 2)
        k = reshape(self.k_proj(hidden), heads)
        k = self.k_norm(k)
        k = turned(k, cos, sin)
        k = transpose(k, 1, 2)
        v = reshape(self.v_proj(hidden), heads)
        v = self.v_norm(v)
        v = transpose(v, 1, 2)
        out, weights = self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (images, patches, -1)))
        out = self.o_proj(out)
        return out, weights


class MLP:
    def __init__(self, spec: Gemma4VisionSpec, build: Builder):
        size, width, clips = spec.hidden_size, spec.intermediate_size, spec.use_clipped_linears
        self.gate_proj = clippable(build, "mlp.gate_proj", size, width, clips)
        self.up_proj = clippable(build, "mlp.up_proj", size, width, clips)
        self.down_proj = clippable(build, "mlp.down_proj", width, size, clips)
        self.activation = ACTIVATIONS[spec.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(mul(self.activation(self.gate_proj(x)), self.up_proj(x)))


def encoder_layer(spec: Gemma4VisionSpec, build: Builder) -> Sandwich:
    """Gemma's: a norm before and one after each block."""
    attention, mlp = SelfAttention(spec, build), MLP(spec, build)
    first, second, third, fourth = (RMSNorm(build, name, spec.hidden_size) for name in NORMS)
    return Sandwich(attention, mlp, (first, second, third, fourth))


class VisionModel:
    """The tower (`Gemma4VisionModel`). Images come as patches, filled up to so many, with the places of all: -1 where none is."""

    def __init__(self, spec: Gemma4VisionSpec, build: Builder):
        size = spec.hidden_size
        self.spec, self.attention = spec, build.attention
        table = (2, spec.position_embedding_size, size)
        self.position_embedding_table = build.parameter("patch_embedder.position_embedding_table", table)
        self.input_proj = build.linear("patch_embedder.input_proj", spec.patch_numbers, size)
        self.frequencies = [build.buffer("encoder.rotary_emb.inv_freq", (spec.head_dim // 4,), dtypes.float32) for _ in range(2)]
        self.layers = build.layers(spec.num_hidden_layers, lambda _: encoder_layer(spec, build), "encoder.layers")
        self.standards = [build.buffer(name, (size,), build.dtype) for name in ("std_bias", "std_scale") if spec.standardize]

    def see(self, pixels: Tensor, places: Tensor, tokens: int) -> Tensor:
        """What the squares of all images become, [images x tokens, size], where each image has so many `tokens`."""
        squares = pixels.shape[1] // self.spec.pooling_kernel_size**2
        outside = marked(places)
        embeds = self._embedded(pixels, places, outside)
        last = self._encoded(embeds, places, outside, tokens < squares)
        out, inside = self._pooled(last, places, outside, squares)
        out = index(out, (inside,), (pixels.shape[0] * tokens, out.shape[-1]))
        if self.standards:
            bias, scale = self.standards
            out = mul(sub(out, to(bias, dtypes.float32)), to(scale, dtypes.float32))
        return to(out, embeds.dtype)

    def _embedded(self, pixels: Tensor, places: Tensor, outside: Tensor) -> Tensor:
        """`Gemma4VisionPatchEmbedder`: pixels between -1 and 1, and what the tables say of column and row."""
        shifted = add_scalar(pixels)
        scaled = mul_scalar(shifted)
        del shifted
        scaled = to(scaled, self.position_embedding_table.dtype)
        hidden = self.input_proj(scaled)
        positions = self._positions(places, outside)
        return add(hidden, positions)

    def _positions(self, places: Tensor, outside: Tensor) -> Tensor:
        clamped = like("clamp", places)
        columns = embedding(select(self.position_embedding_table, 0), select(clamped, 2))
        rows = embedding(select(self.position_embedding_table, 0), select(clamped, 2))
        positions = add(columns, rows)
        return where(unsqueeze(outside, 2), positions)

    def _encoded(self, embeds: Tensor, places: Tensor, outside: Tensor, padded: bool) -> Tensor:
        """`Gemma4VisionEncoder`. Only images that are filled up need a mask."""
        valid = like("bitwise_not", outside)
        mask = self._mask(valid, embeds.dtype) if padded else None
        cos, sin = (empty(embeds.tape, (*embeds.shape[:2], self.spec.head_dim), embeds.dtype, name) for name in ("cos", "sin"))
        hidden = embeds
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, mask, places)
        return hidden

    def _mask(self, valid: Tensor, dtype: DType) -> Tensor:
        """Which patches see which, [images, 1, patches, patches] (masking_utils.py, `sdpa_mask`, `eager_mask`)."""
        images, patches = valid.shape
        seen = empty(valid.tape, (images, 1, patches, patches), dtypes.bool_, "bitwise_and")
        return seen if self.attention == "sdpa" else empty(valid.tape, seen.shape, dtype, "where")

    def _pooled(self, last: Tensor, places: Tensor, outside: Tensor, squares: int) -> tuple[Tensor, Tensor]:
        """`Gemma4VisionPooler`: the mean of each square, in float32, and which squares are of the image."""
        hidden = masked_fill(last, unsqueeze(outside, 2))
        hidden, inside = self._means(hidden, places, squares)
        hidden = mul_scalar(to(hidden, dtypes.float32))
        return hidden, inside

    def _means(self, hidden: Tensor, places: Tensor, squares: int) -> tuple[Tensor, Tensor]:
        tape, (images, patches, _) = hidden.tape, hidden.shape
        clamped = like("clamp", places)
        widest = empty(tape, (images, 1), dtypes.int64, "max")
        each = empty(tape, places.shape, dtypes.int64, "div")
        of_row = empty(tape, (images, patches), dtypes.int64, "mul")
        number = empty(tape, (images, patches), dtypes.int64, "add")
        del of_row, each
        shape = images, patches, squares
        hot = empty(tape, shape, dtypes.int64, "one_hot")
        ones = empty(tape, shape, dtypes.float32, "_to_copy")
        del hot
        weights = empty(tape, shape, dtypes.float32, "div")
        del ones
        out = matmul(transpose(weights, 1, 2), to(hidden, dtypes.float32))
        none = empty(tape, shape, dtypes.bool_, "eq")
        every = empty(tape, (images, squares), dtypes.bool_, "all")
        del none
        inside = like("logical_not", every)
        del every
        out, means = to(out, hidden.dtype), out
        del clamped, widest, number, means
        return out, inside


def marked(places: Tensor) -> Tensor:
    """A comparison of the places of patches, of which both numbers must hold: booleans [images, patches]."""
    compared = empty(places.tape, places.shape, dtypes.bool_, "eq")
    made = empty(places.tape, places.shape[:2], dtypes.bool_, "all")
    del compared
    return made


HEADS = {"features": counted(VisionModel)}
