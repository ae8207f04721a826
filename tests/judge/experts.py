"""A training step of LoRA beside experts that bitsandbytes' parametrization unpacks, on fake tensors."""

from __future__ import annotations

import warnings
from math import prod
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.utils import parametrize

from estimator.contract.job import Job
from estimator.families.spec import ModelSpec
from estimator.verify import model as usual
from estimator.verify.step import Counted, fake_step

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from bitsandbytes.functional import QuantState
    from bitsandbytes.nn.parametrize import Bnb4bitParametrization, _register_parametrization_hooks

PLAYED = ("training.quantization", "training.quantized_experts", "training.unquantized")


def experts_step(job: Job, spec: ModelSpec) -> Counted:
    """What `fake_step` counts where the model's experts, and nothing else, are stored in nf4."""
    plain = usual.plain

    def quantized(*args: Any) -> Any:
        made = plain(*args)
        made.requires_grad_(False)
        for module in list(made.modules()):
            for name, weight in list(module.named_parameters(recurse=False)):
                if weight.ndim == 3:
                    _replace(module, name, weight)
        return made

    with mock.patch.object(usual, "plain", quantized):
        return fake_step(job, spec, elsewhere=PLAYED)


def _replace(module: nn.Module, name: str, weight: torch.Tensor) -> None:
    """`replace_parameter_4bit` without numbers: 64 weights to a float32 scale."""
    codes = nn.Parameter(torch.empty(prod(weight.shape) // 2, 1, dtype=torch.uint8), requires_grad=False)
    scales = torch.empty(prod(weight.shape) // 64, dtype=torch.float32)
    state = QuantState(
        absmax=scales, shape=weight.shape, code=torch.empty(16), blocksize=64, quant_type="nf4", dtype=weight.dtype
    )
    setattr(module, name, codes)
    held = Bnb4bitParametrization(state)
    held.register_buffer("scales", state.absmax)  # for the judge to count
    held.register_buffer("values", state.code)
    parametrize.register_parametrization(module, name, held, unsafe=True)
    _register_parametrization_hooks(module, name)
