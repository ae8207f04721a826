"""InternVL's vision tower: ViT with a factor for what each block adds.

After transformers' modeling_internvl.py (5.23). Tiles are of the size that the model has positions for.
"""

from __future__ import annotations

from typing import Literal

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.modules import Module
from estimator.families.spec import Depth, Probability, Size
from estimator.families.towers import Side, SquareTowerSpec
from estimator.families.vit import patches
from estimator.tape.pointwise import add, dropout, mul
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, contiguous, expand, reshape, transpose


class InternVLVisionSpec(SquareTowerSpec):
    hidden_size: Size = 1024
    intermediate_size: Size = 4096
    num_hidden_layers: Depth = 24
    num_attention_heads: Size = 16
    image_size: Side = 448
    patch_size: Side = 14
    attention_bias: bool = False
    use_qk_norm: bool = False
    norm_type: Literal["layer_norm", "rms_norm"] = "layer_norm"
    use_mask_token: bool = False
    use_absolute_position_embeddings: bool = True
    use_mean_pooling: bool = True
    hidden_dropout_prob: Probability = 0.0
    attention_dropout: Probability = 0.0
    projection_dropout: Probability = 0.0


SPECS = {"internvl_vision": InternVLVisionSpec}


class SelfAttention:
    def __init__(self, spec: InternVLVisionSpec, build: Builder):
        size = spec.hidden_size
        self.head_dim, self.dropout = size // spec.num_attention_heads, spec.projection_dropout
        self.q_proj = build.linear("attention.q_proj", size, size, spec.attention_bias)
        self.k_proj = build.linear("attention.k_proj", size, size, spec.attention_bias)
        self.v_proj = build.linear("attention.v_proj", size, size, spec.attention_bias)
        self.projection_layer = build.linear("attention.projection_layer", size, size, True)
        self.q_norm = build.rms_norm("attention.q_norm", size) if spec.use_qk_norm else _as_it_is
        self.k_norm = build.rms_norm("attention.k_norm", size) if spec.use_qk_norm else _as_it_is
        self.attend = Attention(build.attention, False, spec.attention_dropout, cast_back=False, causal=False)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, tokens, size = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = self.q_proj(hidden)
        k = self.k_proj(hidden)
        v = self.v_proj(hidden)
        q = self.q_norm(q)
        k = self.k_norm(k)
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        out, weights = self.attend(q, k, v, None)
        out = contiguous(reshape(out, (batch, tokens, size)))
        projected = self.projection_layer(out)
        projected = dropout(projected, self.dropout)
        return projected, weights


def _as_it_is(x: Tensor) -> Tensor:
    return x


class Layer:
    """`InternVLVisionLayer`, which holds what attention adds until it is done."""

    def __init__(self, spec: InternVLVisionSpec, build: Builder):
        size, self.dropout = spec.hidden_size, spec.hidden_dropout_prob
        norm = build.layer_norm if spec.norm_type == "layer_norm" else build.rms_norm
        self.lambda_1 = build.parameter("lambda_1", (size,))
        self.lambda_2 = build.parameter("lambda_2", (size,))
        self.attention = SelfAttention(spec, build)
        self.mlp = TwoLayerMLP(spec, build, ("fc1", "fc2"), bias=True)
        self.layernorm_before: Module = norm("layernorm_before", size)
        self.layernorm_after: Module = norm("layernorm_after", size)

    def __call__(self, hidden: Tensor) -> Tensor:
        normed = self.layernorm_before(hidden)
        attended, _ = self.attention(normed)
        del normed
        attended = mul(self.lambda_1, attended)
        hidden = add(attended, hidden)
        out = self.layernorm_after(hidden)
        out = self.mlp(out)
        out = dropout(out, self.dropout)
        out = mul(self.lambda_2, out)
        return add(out, hidden)


class VisionModel:
    """The tower (`InternVLVisionModel`)."""

    def __init__(self, spec: InternVLVisionSpec, build: Builder):
        size, patch = spec.hidden_size, (spec.patch_size, spec.patch_size)
        self.dropout, self.hooked = spec.hidden_dropout_prob, build.recomputes
        self.cls_token = build.parameter("embeddings.cls_token", (1, 1, size))
        if spec.use_mask_token:
            build.parameter("embeddings.mask_token", (1, 1, size), read=False)
        self.positions: Tensor | None = None
        if spec.use_absolute_position_embeddings:
            self.positions = build.parameter("embeddings.position_embeddings", (1, spec.patches + 1, size))
        self.projection = build.convolution(
            "embeddings.patch_embeddings.projection", spec.num_channels, size, patch, spec.patch_size
        )
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build), last=1, places="encoder.layer")
        self.layernorm: Module = _as_it_is if spec.use_mean_pooling else build.layer_norm("layernorm", size)

    def see(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Last hidden states, [tiles, 1 + patches, width], normed and not."""
        hidden = self._embedded(pixels)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.layernorm(hidden), hidden

    def _embedded(self, pixels: Tensor) -> Tensor:
        embeds = patches(self.projection(pixels))
        if self.hooked and embeds.tape.grad_enabled:
            embeds.requires_grad = True
        classes = expand(self.cls_token, (pixels.shape[0], *self.cls_token.shape[1:]))
        embeds = cat((classes, embeds), 1)
        if self.positions is not None:
            embeds = add(embeds, self.positions)
        return dropout(embeds, self.dropout)


HEADS = {"features": counted(VisionModel)}
