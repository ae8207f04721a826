"""DINOv3's ViTs: DINOv2's blocks, with rotary positions of patches in place of learned ones, and registers by the class token.

After transformers' modeling_dinov3_vit.py (5.23), which has no class with a classifier: here that is a linear layer on the class
token, as ViT's.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from estimator.families import vit
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.dinov2 import Layer
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.modules import ACTIVATIONS, Module, rotated
from estimator.families.spec import Depth, Probability, Size
from estimator.families.towers import SquareTowerSpec
from estimator.tape import dtypes
from estimator.tape.pointwise import mul
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, contiguous, expand, reshape, split, transpose


class Dinov3Spec(SquareTowerSpec):
    last_vllm = "none"
    why_not_vllm = "its registry has no model that reads images alone"

    runs = True
    modelled = {"drop_path_rate": (0,)}

    hidden_size: Size = 384
    intermediate_size: Size = 1536
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 6
    num_register_tokens: Size
    use_gated_mlp: bool = False
    query_bias: bool = True
    key_bias: bool = False
    value_bias: bool = True
    proj_bias: bool = True
    mlp_bias: bool = True
    attention_dropout: Probability = 0.0

    @model_validator(mode="after")
    def _quarters(self) -> Self:
        if self.head_dim % 4:
            raise ValueError(f"heads of {self.head_dim} are not a multiple of 4: rows and columns have pairs of rotations each")
        return self

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def longest_sequence(self) -> int | None:
        """An image's patches, its registers, and one token for its class."""
        return self.patches + self.num_register_tokens + 1


SPECS = {"dinov3_vit": Dinov3Spec}


class SelfAttention:
    def __init__(self, spec: Dinov3Spec, build: Builder):
        size, self.head_dim = spec.hidden_size, spec.head_dim
        dropped = spec.attention_dropout if build.training else 0.0
        self.attend = Attention(build.attention, False, dropped, cast_back=False, causal=False)
        self.k_proj = build.linear("attention.k_proj", size, size, spec.key_bias)
        self.v_proj = build.linear("attention.v_proj", size, size, spec.value_bias)
        self.q_proj = build.linear("attention.q_proj", size, size, spec.query_bias)
        self.o_proj = build.linear("attention.o_proj", size, size, spec.proj_bias)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = self.q_proj(hidden)
        k = self.k_proj(hidden)
        v = self.v_proj(hidden)
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        q, k = rotate_patches(q, k, cos, sin)
        out, weights = self.attend(q, k, v, None)
        out = contiguous(reshape(out, (batch, tokens, -1)))
        out = self.o_proj(out)
        return out, weights


def rotate_patches(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys, [batch, heads, tokens, size], of which those of patches are rotated (`apply_rotary_pos_emb`)."""
    sizes = q.shape[2] - cos.shape[0], cos.shape[0]
    q_prefix, q_patches = split(q, sizes, 2)
    k_prefix, k_patches = split(k, sizes, 2)
    q_patches = rotated(q_patches, cos, sin)
    k_patches = rotated(k_patches, cos, sin)
    turned_q = cat((q_prefix, q_patches), 2)
    turned_k = cat((k_prefix, k_patches), 2)
    return turned_q, turned_k


class GatedMLP:
    def __init__(self, spec: Dinov3Spec, build: Builder):
        size, width, bias = spec.hidden_size, spec.intermediate_size, spec.mlp_bias
        self.activation = ACTIVATIONS[spec.hidden_act]
        self.gate_proj = build.linear("mlp.gate_proj", size, width, bias)
        self.up_proj = build.linear("mlp.up_proj", size, width, bias)
        self.down_proj = build.linear("mlp.down_proj", width, size, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(mul(self.activation(self.gate_proj(x)), self.up_proj(x)))


def _layer(spec: Dinov3Spec, build: Builder) -> Layer:
    def mlp() -> Module:
        if spec.use_gated_mlp:
            return GatedMLP(spec, build)
        return TwoLayerMLP(spec, build, ("up_proj", "down_proj"), bias=spec.mlp_bias)

    return Layer(spec.hidden_size, lambda: SelfAttention(spec, build), mlp, build)


class Dinov3:
    """The body of the model. Coordinates of patches are computed once, and kept."""

    def __init__(self, spec: Dinov3Spec, build: Builder):
        self.spec, size, patch = spec, spec.hidden_size, spec.patch_size
        self.cls_token = build.parameter("embeddings.cls_token", (1, 1, size))
        build.parameter("embeddings.mask_token", (1, 1, size), read=False)
        self.register_tokens = build.parameter("embeddings.register_tokens", (1, spec.num_register_tokens, size))
        # where layers are recomputed in segments, what is to be recomputed needs an input that requires gradients
        hooked = bool(build.checkpointing.segment)
        self.patch_embeddings = build.convolution(
            "embeddings.patch_embeddings", spec.num_channels, size, (patch, patch), patch, first=hooked
        )
        self.buffers = [
            build.buffer("inv_freq", (spec.head_dim // 4,), dtypes.float32),
            build.buffer("coordinates", (spec.patches, 2), dtypes.float32),
        ]
        self.layers = build.layers(spec.num_hidden_layers, lambda _: _layer(spec, build), "layer")
        self.norm = build.layer_norm("norm", size)

    def forward(self, pixels: Tensor) -> Tensor:
        embedded = self._embedded(pixels)
        cos, sin = (empty(pixels.tape, (self.spec.patches, self.spec.head_dim), pixels.dtype, name) for name in ("cos", "sin"))
        hidden = embedded
        for layer in self.layers:
            hidden = layer(hidden, cos, sin)
        return self.norm(hidden)

    def _embedded(self, pixels: Tensor) -> Tensor:
        embeds = vit.patches(self.patch_embeddings(pixels))
        tokens = [expand(t, (pixels.shape[0], *t.shape[1:])) for t in (self.cls_token, self.register_tokens)]
        return cat((*tokens, embeds), 1)


HEADS = {"image-classification": lambda spec, build: vit.ImageClassification(spec, build, Dinov3(spec, build))}
