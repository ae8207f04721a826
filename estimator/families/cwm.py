"""Code World Model: Llama of which three layers in four see a sliding window; the first sees everything.

After transformers' modeling_cwm.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.heads import language_model
from estimator.families.ministral import ministral
from estimator.families.spec import Size
from estimator.families.windows import WindowedSpec


class CwmSpec(WindowedSpec):
    in_sglang = "transformers"
    can = Abilities()
    default_period = 4
    seeing_all = 0
    modelled = {"mlp_bias": (False,)}

    max_position_embeddings: Size | None = 131072
    sliding_window: Size = 8192


SPECS = {"cwm": CwmSpec}
HEADS = language_model(ministral)
