"""Mistral Large 4: Mistral 3 with a language model of its own, whose logits go through a tanh.

After transformers' modeling_mistral_large4.py (5.23).
"""

from __future__ import annotations

from functools import partial

from estimator.families.mistral3 import Mistral3Spec, between, mistral3
from estimator.families.parts import multimodal


class MistralLarge4Spec(Mistral3Spec):
    runs = True
    kinds = {"text_config": "mistral_large4_text", "vision_config": "pixtral"}
    languages = ("mistral_large4_text",)

    tie_word_embeddings: bool = False


SPECS = {"mistral_large4": MistralLarge4Spec}
HEADS = multimodal(between, partial(mistral3, caps=True))
