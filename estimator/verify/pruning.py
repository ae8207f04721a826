"""Masks on a real model's weights, as torch puts them there."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils import prune
from transformers.pytorch_utils import Conv1D

from estimator.contract.job import Training
from estimator.contract.job.adapter import ALL_LINEAR
from estimator.families.build import PEFT_HEADS
from estimator.training.targets import matches
from estimator.verify.live import Live


def pruned(model: Any, training: Training) -> None:
    """Put a mask on each target, which leaves every number as it is."""
    asked = training.pruning
    if asked is None:
        return
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear | Conv1D) or module is model.get_output_embeddings():
            continue
        if asked.targets == ALL_LINEAR:
            chosen = name.partition(".")[0] not in PEFT_HEADS
        else:
            chosen = matches(asked.targets if isinstance(asked.targets, str) else tuple(asked.targets), name)
        if chosen:
            prune.identity(module, "weight")


def track_products(model: nn.Module, live: Live) -> None:
    """Count the weights that pruned layers compute with, which are no parameters of them."""
    for module in model.modules():
        if hasattr(module, "weight_mask"):
            weight: Any = module.weight
            live.track(weight.data)
