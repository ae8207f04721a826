"""torchao's linear layers, as it puts them in a model: with products in fp8, or with weights in eight bits."""

from __future__ import annotations

from typing import Any

from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

from estimator.contract.job import Training
from estimator.tape.float8 import ALIGNMENT
from estimator.verify.fp8 import changed


def convert(model: Any, training: Training) -> None:
    """Convert all linear layers but the output layer, those that the job leaves out, and those whose sizes fp8 does not take."""
    linears = changed(model, training)

    def converts(module: nn.Module, name: str) -> bool:
        assert isinstance(module, nn.Linear)
        return name in linears and module.in_features % ALIGNMENT == module.out_features % ALIGNMENT == 0

    convert_to_float8_training(model, module_filter_fn=converts, config=Float8LinearConfig.from_recipe_name(training.float8))


def quantize(model: Any, training: Training) -> None:
    """Store the weights of all linear layers in eight bits, but the output layer's and those that the job leaves out."""
    config = Int8WeightOnlyConfig() if training.quantization == "torchao-int8" else Float8WeightOnlyConfig()
    linears = changed(model, training)
    quantize_(model, config, lambda module, name: name in linears)
