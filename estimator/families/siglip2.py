"""SigLIP 2's tower for images of any shape (NaFlex): patches as a linear layer sees them, filled up to so many, and a square of
learned positions that is stretched to the rows and columns of each image.

After transformers' modeling_siglip2.py and image_processing_siglip2.py (5.23).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from pydantic import model_validator

from estimator.families import clip
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.siglip import SiglipVisionSpec, encoder
from estimator.families.siglip_pooling import PoolingHead
from estimator.families.spec import Activation, Depth, Size
from estimator.families.towers import TowerSpec
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, to
from estimator.tape.pooling import stretched
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import expand, permute, reshape, select, transpose, unsqueeze, write_part

Grid = tuple[int, int]
"""Rows and columns of patches."""


class Siglip2VisionSpec(TowerSpec):
    """`num_patches`: learned positions, which are a square."""

    hidden_size: Size = 768
    intermediate_size: Size = 3072
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 12
    hidden_act: Activation = "gelu_pytorch_tanh"
    num_patches: Size = 256
    vision_use_head: bool = True

    @model_validator(mode="after")
    def _square(self) -> Siglip2VisionSpec:
        if isqrt(self.num_patches) ** 2 != self.num_patches:
            raise ValueError(f"num_patches {self.num_patches} are no square")
        return self

    @property
    def patch_numbers(self) -> int:
        """Numbers of one patch, of all channels."""
        return self.num_channels * self.patch_size**2

    @property
    def fixed(self) -> SiglipVisionSpec:
        """The tower for images of one size, whose layers and head are the same."""
        given = self.model_dump(exclude={"num_patches", "model_type", "max_position_embeddings"})
        return SiglipVisionSpec.model_validate({**given, "model_type": "siglip_vision_model"})


SPECS = {"siglip2_vision_model": Siglip2VisionSpec}


class VisionModel:
    """The tower (`Siglip2VisionModel`); its forward pass is modelled without the pooling head."""

    def __init__(self, spec: Siglip2VisionSpec, build: Builder):
        self.side, self.attention = isqrt(spec.num_patches), build.attention
        self.hooked = build.recomputes
        self.patch_embedding = build.linear("embeddings.patch_embedding", spec.patch_numbers, spec.hidden_size, True)
        self.position_embedding = build.embedding(
            "embeddings.position_embedding", spec.num_patches, spec.hidden_size, first=False
        )
        self.layers = encoder(spec.fixed, build, "encoder.layers")
        self.post_layernorm = build.layer_norm("post_layernorm", spec.hidden_size)
        if spec.vision_use_head:
            self.head = PoolingHead(spec, build, "head")

    def see(self, pixels: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Last hidden states of images, [images, patches, width], of which each has real patches in rows and columns."""
        embeds = self._embedded(pixels, grids)
        images, patches = pixels.shape[:2]
        padded = any(rows * columns < patches for rows, columns in grids)
        mask = self._mask(embeds, images, patches) if padded or self.attention == "eager" else None
        last = clip.encode(self.layers, embeds, mask)
        return self.post_layernorm(last)

    def _embedded(self, pixels: Tensor, grids: Sequence[Grid]) -> Tensor:
        weight = self.position_embedding.weight
        embeds = self.patch_embedding(to(pixels, weight.dtype))
        if self.hooked and embeds.tape.grad_enabled:
            embeds.requires_grad = True
        table = reshape(weight, (self.side, self.side, -1))
        positions = self._positions(table, grids, pixels.shape[1])
        return add(embeds, positions)

    def _positions(self, table: Tensor, grids: Sequence[Grid], most: int) -> Tensor:
        """The table stretched to each image, whose first place stands for those that are filled up
        (`resize_positional_embeddings`)."""
        size = table.shape[-1]
        places = empty(table.tape, (len(grids), most, size), table.dtype)
        image = unsqueeze(permute(table, (2, 0, 1)), 0)
        for rows, columns in grids:
            resized = transpose(reshape(stretched(image, rows, columns), (size, rows * columns)), 0, 1)
            places = write_part(places, resized)
            places = write_part(places, expand(unsqueeze(select(resized, 0), 0), (most - rows * columns, size)))
        return places

    def _mask(self, embeds: Tensor, images: int, patches: int) -> Tensor:
        """Which patches see which, [images, 1, patches, patches] (masking_utils.py, `sdpa_mask`, `eager_mask`)."""
        shape, tape = (images, 1, patches, patches), embeds.tape
        seen = empty(tape, shape, dtypes.bool_, "bitwise_and")
        return seen if self.attention == "sdpa" else _numbers(seen, embeds.dtype)


def _numbers(seen: Tensor, dtype: DType) -> Tensor:
    return empty(seen.tape, seen.shape, dtype, "where")


HEADS = {"features": counted(VisionModel)}
