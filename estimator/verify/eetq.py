"""transformers' EETQ layers in a model, PEFT's LoRA on them, and their kernel's result on a machine that cannot run it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from peft.tuners.lora import eetq, model
from transformers.integrations.eetq import EetqLinear

from estimator.contract.job import Training
from estimator.verify.fp8 import changed


def replace(made: Any, training: Training) -> None:
    """Put EETQ's layers in the place of all linear layers, but the output layer and those that the job leaves out."""
    for name, module in changed(made, training).items():
        made.set_submodule(name, EetqLinear(module.in_features, module.out_features, bias=module.bias is not None))


class Kernels:
    """What transformers fetches from kernels-community/quantization-eetq."""

    @staticmethod
    def w8_a16_gemm(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """A tensor of the input's type (csrc/cutlass_kernels/fpA_intB_gemm_wrapper.cu)."""
        return x.new_empty(*x.shape[:-1], weight.shape[-1])


@contextmanager
def installed() -> Iterator[None]:
    """PEFT defines its layer only where the package eetq is there; of that it needs the class alone."""
    package: Any = ModuleType("eetq")
    package.EetqLinear = EetqLinear
    with mock.patch.dict(sys.modules, eetq=package), mock.patch("peft.import_utils.is_eetq_available", return_value=True):
        dispatch = importlib.reload(eetq).dispatch_eetq
    with mock.patch.object(model, "dispatch_eetq", dispatch):
        yield
