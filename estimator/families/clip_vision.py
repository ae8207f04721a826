"""CLIP's vision tower by itself, as other models have it.

After transformers' modeling_clip.py (5.23).
"""

from __future__ import annotations

from collections.abc import Sequence

from estimator.families import clip
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.spec import Activation, Depth, Size
from estimator.families.towers import Side, SquareTowerSpec


class CLIPVisionSpec(SquareTowerSpec):
    hidden_size: Size = 768
    intermediate_size: Size = 3072
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 12
    patch_size: Side = 32
    hidden_act: Activation = "quick_gelu"


SPECS = {"clip_vision_model": CLIPVisionSpec}


def vision_model(spec: CLIPVisionSpec, build: Builder, states: Sequence[int] = ()) -> clip.VisionModel:
    """The tower; `states`: which hidden states another model reads of it."""
    return clip.VisionModel(clip.VisionSpec.model_validate(spec.model_dump()), build, whole=True, states=states)


HEADS = {"features": counted(vision_model)}
