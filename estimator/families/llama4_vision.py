"""Llama 4's vision tower: patches as one linear layer sees them, learned and rotary positions, and squares that become one token.

After transformers' modeling_llama4.py (5.23).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.llama4_text import turned
from estimator.families.spec import Depth, Probability, Size
from estimator.families.towers import Side, SquareTowerSpec
from estimator.tape import dtypes
from estimator.tape.pointwise import add, dropout, gelu
from estimator.tape.pooling import unfold
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, contiguous, expand, narrow, permute, reshape, transpose, unsqueeze


class Llama4VisionSpec(SquareTowerSpec):
    """`pixel_shuffle_ratio`: of the side of a square that becomes one token, to that of a patch's."""

    hidden_size: Size = 768
    intermediate_size: Size = 5632
    num_hidden_layers: Depth = 34
    num_attention_heads: Size = 16
    image_size: Side = 448
    patch_size: Side = 14
    vision_output_dim: Size = 7680
    projector_input_dim: Size = 4096
    projector_output_dim: Size = 4096
    pixel_shuffle_ratio: Annotated[float, Field(gt=0, le=1)] = 0.5
    projector_dropout: Probability = 0.0
    attention_dropout: Probability = 0.0

    @property
    def merged(self) -> int:
        """Patches along the side of a square that becomes one token."""
        return round(1 / self.pixel_shuffle_ratio)

    @property
    def fits(self) -> bool:
        """Whether its layers take what those before them give."""
        squares = self.image_size // self.patch_size % self.merged == 0 and self.merged * self.pixel_shuffle_ratio == 1
        sizes = (
            self.hidden_size * self.merged**2 == self.intermediate_size and self.projector_input_dim == self.projector_output_dim
        )
        return squares and sizes and self.projector_output_dim == self.vision_output_dim


SPECS = {"llama4_vision_model": Llama4VisionSpec}


class SelfAttention:
    def __init__(self, spec: Llama4VisionSpec, build: Builder):
        size = spec.hidden_size
        self.head_dim = size // spec.num_attention_heads
        self.q_proj = build.linear("self_attn.q_proj", size, size, True)
        self.k_proj = build.linear("self_attn.k_proj", size, size, True)
        self.v_proj = build.linear("self_attn.v_proj", size, size, True)
        self.o_proj = build.linear("self_attn.o_proj", size, size, True)
        dropped = spec.attention_dropout if build.training else 0.0
        self.attend = Attention(build.attention, float32_softmax=False, dropout=dropped, cast_back=False, causal=False)

    def __call__(self, hidden: Tensor, turns: Tensor) -> tuple[Tensor, Tensor | None]:
        tiles, tokens, _ = hidden.shape
        heads = (tiles, tokens, -1, self.head_dim)
        q = reshape(self.q_proj(hidden), heads)
        k = reshape(self.k_proj(hidden), heads)
        v = reshape(self.v_proj(hidden), heads)
        q, k = turned(q, k, turns)
        q = transpose(q, 1, 2)
        k = transpose(k, 1, 2)
        v = transpose(v, 1, 2)
        out, weights = self.attend(q, k, v, None)
        out = contiguous(reshape(out, (tiles, tokens, -1)))
        out = self.o_proj(out)
        return out, weights


class EncoderLayer:
    def __init__(self, spec: Llama4VisionSpec, build: Builder):
        size = spec.hidden_size
        self.self_attn = SelfAttention(spec, build)
        self.mlp = TwoLayerMLP(spec, build, ("fc1", "fc2"), bias=True)
        self.input_layernorm = build.layer_norm("input_layernorm", size)
        self.post_attention_layernorm = build.layer_norm("post_attention_layernorm", size)

    def __call__(self, hidden: Tensor, turns: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, turns)
        out = add(residual, out)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        return add(residual, out)


class Adapter:
    """Squares of patches, side by side, and two linear layers (`Llama4VisionPixelShuffleMLP`)."""

    def __init__(self, spec: Llama4VisionSpec, build: Builder):
        self.merged, self.dropout = spec.merged, spec.projector_dropout if build.training else 0.0
        self.fc1 = build.linear("vision_adapter.mlp.fc1", spec.intermediate_size, spec.projector_input_dim)
        self.fc2 = build.linear("vision_adapter.mlp.fc2", spec.projector_output_dim, spec.projector_output_dim)

    def __call__(self, seen: Tensor) -> Tensor:
        shuffled = self._shuffled(seen)
        return self.mlp(shuffled)

    def mlp(self, x: Tensor) -> Tensor:
        out = self.fc1(x)
        out = gelu(out)
        out = dropout(out, self.dropout)
        return gelu(self.fc2(out))

    def _shuffled(self, seen: Tensor) -> Tensor:
        """`pixel_shuffle`."""
        tiles, patches, size = seen.shape
        side, merged = round(patches**0.5), self.merged
        x = contiguous(permute(reshape(seen, (tiles, side, side // merged, size * merged)), (0, 2, 1, 3)))
        x = reshape(x, (tiles, side // merged, side // merged, size * merged**2))
        x = contiguous(permute(x, (0, 2, 1, 3)))
        return reshape(x, (tiles, patches // merged**2, size * merged**2))


class VisionModel:
    """The tower (`Llama4VisionModel`). What embeds patches is its input embedding, whose output transformers lets require
    gradients where layers are recomputed."""

    def __init__(self, spec: Llama4VisionSpec, build: Builder):
        size, tokens = spec.hidden_size, spec.patches + 1
        self.patch_size, self.hooked = spec.patch_size, build.recomputes
        self.class_embedding = build.parameter("class_embedding", (size,))
        self.positional_embedding_vlm = build.parameter("positional_embedding_vlm", (tokens, size))
        self.linear = build.linear("patch_embedding.linear", spec.num_channels * spec.patch_size**2, size)
        self.layernorm_pre = build.layer_norm("layernorm_pre", size)
        self.layernorm_post = build.layer_norm("layernorm_post", size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: EncoderLayer(spec, build), "model.layers")
        self.vision_adapter = Adapter(spec, build)
        self.freqs_ci = build.buffer("freqs_ci", (tokens, 1, size // spec.num_attention_heads // 2), dtypes.complex64)

    def __call__(self, pixels: Tensor) -> Tensor:
        """What tokens get, [tiles, tokens, width], of tiles [tiles, channels, height, width]."""
        hidden = self._embedded(pixels)
        classes = expand(self.class_embedding, (hidden.shape[0], 1, hidden.shape[-1]))
        hidden = cat((hidden, classes), 1)
        hidden = add(hidden, self.positional_embedding_vlm)
        hidden = self.layernorm_pre(hidden)
        turns = unsqueeze(reshape(self.freqs_ci, (self.freqs_ci.shape[0], -1)), 0)
        last = hidden
        for layer in self.layers:
            last = layer(last, turns)
        hidden = self.layernorm_post(last)
        hidden = narrow(hidden, 1, hidden.shape[1] - 1)
        adapted = self.vision_adapter(hidden)
        del last, hidden
        return adapted

    def _embedded(self, pixels: Tensor) -> Tensor:
        out = unfold(pixels, self.patch_size)
        out = permute(out, (0, 2, 1))
        out = self.linear(out)
        if self.hooked and out.tape.grad_enabled:
            out.requires_grad = True
        return out


HEADS = {"features": counted(VisionModel)}
