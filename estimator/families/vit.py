"""ViT: patches of an image as tokens, a class token before them, layers that see all tokens. DeiT has a second token, from which
it was distilled.

After transformers' modeling_vit.py and modeling_deit.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from pydantic import model_validator

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.heads import Batch
from estimator.families.model_output import Held
from estimator.families.spec import Activation, ModelSpec, Probability, Size
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.loss import cross_entropy
from estimator.tape.pointwise import add, dropout
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, contiguous, expand, narrow, reshape, select, transpose


class ViTSpec(ModelSpec):
    """An image has `max_position_embeddings` tokens: its patches and its `own_tokens`, of which one is for its class."""

    own_tokens: ClassVar[int] = 1

    last_vllm = "none"
    why_not_vllm = "its registry has no model that reads images alone"

    num_attention_heads: Size
    intermediate_size: Size
    head_dim: Size
    image_size: Size = 224
    patch_size: Size = 16
    num_channels: Size = 3
    hidden_act: Activation = "gelu"
    qkv_bias: bool = True
    hidden_dropout_prob: Probability = 0.0
    attention_probs_dropout_prob: Probability = 0.0

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"head_dim": hidden // heads}

    @model_validator(mode="before")
    @classmethod
    def _tokens(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        image, patch = given.get("image_size", 224), given.get("patch_size", 16)
        if not (isinstance(image, int) and isinstance(patch, int) and patch > 0):
            return given
        if image < patch:
            raise ValueError(f"patch_size {patch} is larger than image_size {image}")
        return {**given, "max_position_embeddings": (image // patch) ** 2 + cls.own_tokens}

    def config(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude={"max_position_embeddings"})


class DeiTSpec(ViTSpec):
    own_tokens = 2

    def config(self) -> dict[str, Any]:
        """Of several classes that classify images transformers wants one to be named."""
        return super().config() | {"architectures": ["DeiTForImageClassification"]}


SPECS = {"vit": ViTSpec, "deit": DeiTSpec}


class SelfAttention:
    def __init__(self, spec: ViTSpec, build: Builder):
        self.head_dim = spec.head_dim
        size = spec.num_attention_heads * spec.head_dim
        self.q_proj = build.linear("attention.q_proj", spec.hidden_size, size, spec.qkv_bias)
        self.k_proj = build.linear("attention.k_proj", spec.hidden_size, size, spec.qkv_bias)
        self.v_proj = build.linear("attention.v_proj", spec.hidden_size, size, spec.qkv_bias)
        self.o_proj = build.linear("attention.o_proj", size, spec.hidden_size, True)
        self.attend = Attention(build.attention, dropout=spec.attention_probs_dropout_prob, causal=False)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = transpose(reshape(self.q_proj(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_proj(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        out, weights = self.attend(q, k, v, None)
        out = contiguous(reshape(out, (batch, tokens, -1)))
        out = self.o_proj(out)
        return out, weights


class Layer:
    def __init__(self, spec: ViTSpec, build: Builder):
        self.attention = SelfAttention(spec, build)
        self.layernorm_before = build.layer_norm("layernorm_before", spec.hidden_size)
        self.layernorm_after = build.layer_norm("layernorm_after", spec.hidden_size)
        self.mlp = TwoLayerMLP(spec, build, ("fc1", "fc2"), bias=True)
        self.dropout = spec.hidden_dropout_prob

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        out = self.layernorm_before(hidden)
        out, _ = self.attention(out)
        out = dropout(out, self.dropout)
        out = add(out, residual)
        residual = out
        out = self.layernorm_after(out)
        out = self.mlp(out)
        out = dropout(out, self.dropout)
        return add(out, residual)


class Embeddings:
    """`mask_token`: there is a token for masked patches, which no head reads. `registers`: tokens without a place, put in after
    the class token."""

    def __init__(self, spec: ViTSpec, build: Builder, mask_token: bool = False, registers: int = 0):
        size, patch = spec.hidden_size, spec.patch_size
        tokens = (spec.image_size // patch) ** 2 + spec.own_tokens
        self.own_tokens = [build.parameter("cls_token", (1, 1, size))]
        if mask_token:
            build.parameter("mask_token", (1, size), read=False)
        self.position_embeddings = build.parameter("position_embeddings", (1, tokens, size))
        self.own_tokens += [build.parameter("distillation_token", (1, 1, size)) for _ in range(spec.own_tokens - 1)]
        self.registers = build.parameter("register_tokens", (1, registers, size)) if registers else None
        # where layers are recomputed in segments, what is to be recomputed needs an input that requires gradients
        self.projection = build.convolution(
            "patch_embeddings.projection", spec.num_channels, size, (patch, patch), patch, first=bool(build.checkpointing.segment)
        )
        self.dropout = spec.hidden_dropout_prob

    def __call__(self, pixels: Tensor) -> Tensor:
        embeddings = patches(self.projection(pixels))
        own = [expand(token, (pixels.shape[0], *token.shape[1:])) for token in self.own_tokens]
        embeddings = cat((*own, embeddings), 1)
        embeddings = add(embeddings, self.position_embeddings)
        if self.registers is not None:
            registers = expand(self.registers, (pixels.shape[0], *self.registers.shape[1:]))
            embeddings = cat((narrow(embeddings, 1, 1), registers, narrow(embeddings, 1, embeddings.shape[1] - 1)), 1)
        return dropout(embeddings, self.dropout)


def patches(x: Tensor) -> Tensor:
    """[batch, channels, height, width] as [batch, patches, channels]."""
    return transpose(reshape(x, (*x.shape[:2], -1)), 1, 2)


class ViT:
    """The body of the model."""

    def __init__(self, spec: ViTSpec, build: Builder):
        self.embeddings = Embeddings(spec, build)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build))
        self.layernorm = build.layer_norm("layernorm", spec.hidden_size)

    def forward(self, pixels: Tensor) -> Tensor:
        embedded = self.embeddings(pixels)
        hidden = embedded
        for layer in self.layers:
            hidden = layer(hidden)
        return self.layernorm(hidden)


class Body(Protocol):
    """What makes tokens of pixels, the class token first."""

    def forward(self, pixels: Tensor) -> Tensor:
        """Last hidden states (batch, tokens, size)."""


class ImageClassification:
    """A linear layer on the class token (`ViTForImageClassification`). An adapter takes it for a linear layer like others."""

    def __init__(self, spec: Any, build: Builder, body: Body):
        self.spec, self.body = spec, body
        self.classifier = build.linear("classifier", spec.hidden_size, build.labels, True, quantized=False)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        size = self.spec.image_size
        pixels = empty(tape, (batch.sequences, self.spec.num_channels, size, size), dtype, "pixel_values")
        return pixels, empty(tape, (batch.sequences,), dtypes.int64, "labels")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        pixels, labels = inputs
        sequence = self.body.forward(pixels)
        with pixels.tape.losing():
            pooled = select(sequence, 1)
            logits = self.classifier(pooled)
            loss = cross_entropy(logits, labels)
        return loss, logits


HEADS = {"image-classification": lambda spec, build: ImageClassification(spec, build, ViT(spec, build))}
