"""transformers' fp8 layers in a model, and their kernel's result on a machine that cannot run it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.integrations.finegrained_fp8 import FP8Linear
from transformers.quantizers.base import get_keys_to_not_convert

from estimator.contract.job import Training


def replace(model: Any, training: Training) -> None:
    """Put fp8 layers in the place of all linear layers, but the output layer and those that the job leaves out."""
    block = (128, 128) if training.quantization == "fp8-block" else None
    for name, module in changed(model, training).items():
        made = FP8Linear(module.in_features, module.out_features, block, has_bias=module.bias is not None)
        made.bias = module.bias
        model.set_submodule(name, made)


def changed(model: Any, training: Training) -> dict[str, nn.Linear]:
    """The linear layers that are not to stay as they are, by name: all but those that transformers leaves out unasked, which are
    the output layer and the model's last, and those that the job leaves out."""
    unasked = {*get_keys_to_not_convert(model)}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and name not in unasked
        and not any(f".{part}." in f".{name}." for part in training.unquantized or ())
    }


def fp8_linear(x: torch.Tensor, weight: torch.Tensor, scales: Any, block: Any, bias: Any, *settings: Any) -> torch.Tensor:
    """What `fp8_linear` makes with its Triton kernel: the result."""
    out = x.new_empty(*x.shape[:-1], len(weight))
    return out if bias is None else out.add_(bias)
