"""AdapterHub's library as judge of bottleneck adapters: `python -m tests.judge.bottleneck` asks it about each case that has them.

It runs with transformers 4.57, so in an environment of its own: torch, peft and accelerate as elsewhere, adapters 1.3.0 and
transformers 4.57.6. What `estimator.verify` imports or replaces of transformers 5, and these jobs do not need, 4.57 lacks.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import transformers
from transformers import masking_utils, modeling_utils
from transformers.generation import utils as generation
from transformers.integrations import eetq

LACKING: dict[Any, tuple[str, ...]] = {
    ModuleType("transformers.integrations.finegrained_fp8"): ("FP8Linear", "fp8_linear"),
    eetq: ("EetqLinear",),
    masking_utils: ("fast_all", "is_tracing"),
    modeling_utils: ("save_on_cpu",),
    generation: ("StopCheck",),
}


def checkpointed(model: Any, settings: dict[str, Any], every_n_layers: int, offload: bool) -> None:
    """What transformers 5 calls to recompute every layer."""
    assert (every_n_layers, offload) == (1, False)
    model.gradient_checkpointing_enable(settings)


if transformers.__version__.startswith("4.57"):
    for module, names in LACKING.items():
        sys.modules[module.__name__] = module
        for name in names:
            setattr(module, name, None)
    transformers.integrations.finegrained_fp8 = next(iter(LACKING))
    transformers.PreTrainedModel.activation_checkpointing_enable = checkpointed  # type: ignore[method-assign,assignment]

if __name__ == "__main__":
    from tests.judged import main

    main(["bottleneck"])
