"""EXAONE 4.5's vision tower: Qwen2.5-VL's, in which heads of queries share those of keys and values.

After transformers' modeling_exaone4_5.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.qwen_vl_tower import BlockSpec, SelfAttention, VisionModel
from estimator.families.qwen_vl_vision import Qwen25VisionSpec
from estimator.families.spec import Size
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, split


class Exaone45VisionSpec(Qwen25VisionSpec):
    num_key_value_heads: Size = 8


SPECS = {"exaone4_5_vision": Exaone45VisionSpec}


class GroupedAttention(SelfAttention):
    """Queries, keys and values of one layer, side by side, with fewer heads of the latter two."""

    def make_layers(self, spec: BlockSpec, build: Builder) -> None:
        assert isinstance(spec, Exaone45VisionSpec)
        size, keys = spec.width, spec.width // spec.num_attention_heads * spec.num_key_value_heads
        self.parts = size, keys, keys
        self.proj = build.linear("attn.proj", size, size, True)
        self.inputs = [build.linear("attn.qkv", size, sum(self.parts), True)]

    def projected(self, hidden: Tensor) -> list[Tensor]:
        (qkv,) = self.inputs
        head = self.parts[0] // self.heads
        return [reshape(part, (hidden.shape[0], -1, head)) for part in split(qkv(hidden), self.parts, 1)]


def tower(spec: Exaone45VisionSpec, build: Builder, grid: tuple[int, int] | None = None) -> VisionModel:
    """The tower. `grid`: as of `VisionModel`."""
    return VisionModel(spec, build, grid, GroupedAttention)


HEADS = {"features": counted(tower)}
