"""VaultGemma: Gemma 2 without the norms after each block.

After transformers' modeling_vaultgemma.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.gemma import HEADS as GEMMA_HEADS
from estimator.families.gemma import Gemma2Spec


class VaultGemmaSpec(Gemma2Spec):
    in_sglang = "transformers"
    can = Abilities()
    post_norms = False
    second_norm = "pre_feedforward_layernorm"


SPECS = {"vaultgemma": VaultGemmaSpec}
HEADS = {"causal-lm": GEMMA_HEADS["causal-lm"]}
