"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: language models of the Qwen kind that see images and films.

After transformers' modeling_qwen2_vl.py, modeling_qwen2_5_vl.py and modeling_qwen3_vl.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from estimator.families import spec_class
from estimator.families.build import Builder
from estimator.families.heads import CausalLM
from estimator.families.image_text import ImageTextToText
from estimator.families.llama import Qwen2Spec, Qwen3Spec
from estimator.families.parts import MultimodalSpec, build_part
from estimator.families.qwen_vl_text import decoder
from estimator.families.spec import ModelSpec


class _Spec(MultimodalSpec):
    """What the three have in common: parts that are of one type each, whatever their configurations name.

    Training on texts alone is modelled, images are not yet.
    """

    runs = True
    fixed = ("text_config", "vision_config")
    plain: ClassVar[str]
    """The family that the language model is of, but for its rotary positions in three dimensions."""

    @property
    def alone(self) -> ModelSpec:
        family = spec_class(self.plain)
        return family.model_validate({**self.language_model.model_dump(), "model_type": self.plain})


class Qwen2VLSpec(_Spec):
    """Older configurations say outside what `text_config` says."""

    plain = "qwen2"
    kinds = {"text_config": "qwen2_vl_text", "vision_config": "qwen2_vl_vision"}
    towers, languages = ("qwen2_vl_vision",), ("qwen2_vl_text",)

    @property
    def tied(self) -> bool:
        return self.tie_word_embeddings or self.text_config.tie_word_embeddings

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        outside = {name: value for name, value in given.items() if name in cls._outside()}
        inside = {name: value for name, value in given.items() if name not in outside}
        return inside if inside.get("text_config") is not None else inside | {"text_config": outside}

    @classmethod
    def _outside(cls) -> set[str]:
        return spec_class(cls.kinds["text_config"]).keys() - {"model_type", "tie_word_embeddings"}

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | cls._outside()


class Qwen25VLSpec(Qwen2VLSpec):
    kinds = {"text_config": "qwen2_5_vl_text", "vision_config": "qwen2_5_vl_vision"}
    towers, languages = ("qwen2_5_vl_vision",), ("qwen2_5_vl_text",)


class Qwen3VLSpec(_Spec):
    plain = "qwen3"
    kinds = {"text_config": "qwen3_vl_text", "vision_config": "qwen3_vl_vision"}
    towers, languages = ("qwen3_vl_vision",), ("qwen3_vl_text",)


SPECS = {"qwen2_vl": Qwen2VLSpec, "qwen2_5_vl": Qwen25VLSpec, "qwen3_vl": Qwen3VLSpec}


def between(spec: MultimodalSpec, build: Builder) -> None:
    """Nothing is between the tower and the language model."""


def qwen_vl(spec: _Spec, build: Builder) -> ImageTextToText:
    """The whole model (`Qwen2_5_VLForConditionalGeneration`), for texts alone."""
    with build.part("model.visual", learns=False):
        tower = build_part(spec.vision_config, build)
    with build.part("model.language_model"):
        text = spec.alone
        assert isinstance(text, Qwen2Spec | Qwen3Spec)
        language = CausalLM(decoder(text, build), text, build)
    return ImageTextToText(language, None, build, held=tower)


HEADS = {"image-text-to-text": qwen_vl}
