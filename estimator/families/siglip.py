"""SigLIP's two towers, and those made after its vision tower: CLIP's layers, and a head that attends to an image's patches.

After transformers' modeling_siglip.py, modeling_idefics3.py and modeling_smolvlm.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

from pydantic import model_validator

from estimator.families import clip
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.layers import Layers
from estimator.families.siglip_pooling import PoolingHead
from estimator.families.spec import Activation, Depth, ModelSpec, Size
from estimator.families.towers import Side, SquareTowerSpec
from estimator.families.vit import patches
from estimator.tape import dtypes
from estimator.tape.pointwise import add, to
from estimator.tape.tensor import Tensor


class SiglipVisionSpec(SquareTowerSpec):
    hidden_size: Size = 768
    intermediate_size: Size = 3072
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 12
    hidden_act: Activation = "gelu_pytorch_tanh"
    vision_use_head: bool = True


class Idefics3VisionSpec(SquareTowerSpec):
    """Without the head, and with the places of patches counted for images of any shape."""

    hidden_size: Size = 1152
    intermediate_size: Size = 3072
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 16
    patch_size: Side = 32
    hidden_act: Activation = "gelu_pytorch_tanh"


class SiglipTextSpec(ModelSpec):
    """Without `projection_size` what it gives is as wide as the model."""

    runs = False
    learned_positions = True

    hidden_size: Size = 768
    intermediate_size: Size = 3072
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 12
    max_position_embeddings: Size = 64
    hidden_act: Activation = "gelu_pytorch_tanh"
    vocab_size: Size = 32000
    projection_size: Size | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} heads")
        return self


SPECS: dict[str, type[ModelSpec]] = {
    "siglip_text_model": SiglipTextSpec,
    "siglip_vision_model": SiglipVisionSpec,
    "idefics3_vision": Idefics3VisionSpec,
    "smolvlm_vision": Idefics3VisionSpec,
}


def text_model(spec: SiglipTextSpec, build: Builder) -> None:
    places = spec.max_position_embeddings
    build.embedding("text_model.embeddings.token_embedding", spec.vocab_size, spec.hidden_size, first=True)
    build.embedding("text_model.embeddings.position_embedding", places, spec.hidden_size, first=False)
    build.buffer("text_model.embeddings.position_ids", (1, places), dtypes.int64)
    encoder(spec, build, "text_model.layers")
    build.layer_norm("text_model.final_layer_norm", spec.hidden_size)
    build.linear("text_model.head", spec.hidden_size, spec.projection_size or spec.hidden_size, True)


def vision_model(spec: SquareTowerSpec, build: Builder) -> VisionModel:
    return VisionModel(spec, build)


class VisionModel:
    """The tower (`SiglipVisionModel`). The loss of a model that reads it does not depend on its pooling head.

    `states`: which hidden states are read, where it is not the last ones: those before the layer of that number. `pooled`:
    whether it has its pooling head, where its configuration says so; else the model of both towers has that.
    """

    def __init__(self, spec: SquareTowerSpec, build: Builder, states: Sequence[int] = (), pooled: bool = True):
        size, patch = spec.hidden_size, (spec.patch_size, spec.patch_size)
        self.patch_embedding = build.convolution(
            "embeddings.patch_embedding",
            spec.num_channels,
            size,
            patch,
            spec.patch_size,
            first=isinstance(spec, SiglipVisionSpec),
        )
        self.position_embedding = build.embedding("embeddings.position_embedding", spec.patches, size, first=False)
        self.states = frozenset(states)
        self.layers = encoder(spec, build, "vision_model.layers", self.states)
        with build.unlearning(bool(states)):
            self.post_layernorm = build.layer_norm("post_layernorm", size)
        if isinstance(spec, SiglipVisionSpec):
            self.position_ids = build.buffer("embeddings.position_ids", (1, spec.patches), dtypes.int64)
        self.head = None
        if isinstance(spec, SiglipVisionSpec) and spec.vision_use_head and pooled:
            with build.unlearning(True):
                self.head = PoolingHead(spec, build, "head")

    def see(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Last hidden states of images, what its head makes of them where it has one, and the other states that are read."""
        embeds = patches(self.patch_embedding(to(pixels, self.patch_embedding.weight.dtype)))
        embeds = add(embeds, self.position_embedding(self.position_ids))
        last, *states = clip.encoded(self.layers, embeds, self.states)
        last = self.post_layernorm(last)
        return (last, *states) if self.head is None else (last, self.head(last), *states)


def encoder(spec: ModelSpec, build: Builder, label: str, states: Collection[int] = ()) -> Layers:
    """The layers of a tower: CLIP's."""
    tower, own = clip.TowerSpec.model_validate(spec.model_dump()), isinstance(spec, SiglipVisionSpec | SiglipTextSpec)
    return clip.layers_of(tower, build, states, label, norms_first=own)


BODIES: dict[str, Callable[[Any, Builder], None]] = {"siglip_text_model": text_model}
HEADS = {"features": counted(lambda spec, build: BODIES.get(spec.model_type, vision_model)(spec, build))}
