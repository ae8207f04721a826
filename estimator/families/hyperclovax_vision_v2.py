"""HyperCLOVA X SEED Think 32B: HyperCLOVA X that sees images and films through Qwen2.5-VL's tower and a linear layer.

After transformers' modeling_hyperclovax_vision_v2.py (5.23).
"""

from __future__ import annotations

from functools import partial

from estimator.families.build import Builder
from estimator.families.exaone4_5 import SeesPatches, Sight
from estimator.families.heads import Model
from estimator.families.image_text import language_model
from estimator.families.modules import Module
from estimator.families.qwen_vl import Spec
from estimator.families.qwen_vl_tower import VisionModel
from estimator.families.qwen_vl_vision import Qwen25VisionSpec


class HyperClovaXVisionV2Spec(Spec):
    """Each part is of one type, whatever its configuration names: published files give the tower the type of the whole
    Qwen2.5-VL. `bounds` are the defaults of its processor's class."""

    tells_images_apart = False
    in_sglang = "not read"
    plain = "hyperclovax"
    bounds = (56 * 56, 28 * 28 * 1280)
    kinds = {"text_config": "hyperclovax", "vision_config": "qwen2_5_vl_vision"}
    towers, languages = ("qwen2_5_vl_vision",), ("hyperclovax",)

    tie_word_embeddings: bool = True


SPECS = {"hyperclovax_vision_v2": HyperClovaXVisionV2Spec}


def hyperclovax_vision_v2(spec: HyperClovaXVisionV2Spec, build: Builder) -> Model:
    """The whole model (`HyperCLOVAXVisionV2ForConditionalGeneration`)."""
    assert isinstance(spec.vision, Qwen25VisionSpec)

    def project() -> Module:
        return build.linear("projector", spec.vision.widths[2], spec.text_config.hidden_size, True)

    sight = Sight(spec, build, partial(VisionModel, spec.vision, build), "model.vision_model", project)
    return SeesPatches(language_model(spec, build), sight, build, caps=True)


HEADS = {"image-text-to-text": hyperclovax_vision_v2}
