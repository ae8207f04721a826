"""Kimi K2.5: a DeepSeek-V3 language model that gets squares of a tower's patches through two linear layers.

After transformers' modeling_kimi_k25.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.kimi_k25_vision import KimiK25VisionSpec
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.spec import Size


class KimiK25Spec(MultimodalSpec):
    seen_whole_in_vllm = ("mm_projector",)
    captured_in_sglang = True
    kinds = {"text_config": "deepseek_v3", "vision_config": "kimi_k25_vision"}
    fixed = ("text_config", "vision_config")

    projection_hidden_size: Size = 1152
    tie_word_embeddings: bool = True


SPECS = {"kimi_k25": KimiK25Spec}


def between(spec: KimiK25Spec, build: Builder) -> None:
    """What is between the tower and the language model."""
    tower = spec.vision_config
    assert isinstance(tower, KimiK25VisionSpec)
    rows, columns = tower.merge_kernel_size
    seen = tower.hidden_size * rows * columns
    build.layer_norm("mm_projector.pre_norm", spec.projection_hidden_size)
    build.linear("mm_projector.in_proj", seen, seen, True)
    build.linear("mm_projector.out_proj", seen, spec.text_config.hidden_size, True)


HEADS = multimodal(between)
