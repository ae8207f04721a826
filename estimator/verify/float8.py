"""torchao's linear layers in fp8, as `convert_to_float8_training` puts them in a model, and what of them is no storage."""

from __future__ import annotations

from typing import Any

from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

from estimator.job import Training
from estimator.tape.float8 import ALIGNMENT


def convert(model: Any, training: Training) -> None:
    """Convert all linear layers but the output layer, those that the job leaves out, and those whose sizes fp8 does not take."""
    head, left = model.get_output_embeddings(), training.unquantized or ()

    def converts(module: nn.Module, name: str) -> bool:
        assert isinstance(module, nn.Linear)
        aligned = module.in_features % ALIGNMENT == module.out_features % ALIGNMENT == 0
        return module is not head and aligned and not any(f".{part}." in f".{name}." for part in left)

    convert_to_float8_training(model, module_filter_fn=converts, config=Float8LinearConfig.from_recipe_name(training.float8))
