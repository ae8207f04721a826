"""A training step of LoRA, and generation, beside HQQ's own linear layers, on fake tensors."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import transformers
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer  # type: ignore[import-not-found]
from torch import nn

from estimator.contract.job import Job
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.verify import model as usual
from estimator.verify.step import Counted, fake_step
from tests.judge.serving import fake_serving

PER_BYTE = {8: 1, 4: 2, 2: 4, 1: 8}


def hqq_step(job: Job, spec: ModelSpec) -> Counted:
    """What `fake_step` counts where the model's linear layers are HQQ's."""
    name = job.training.quantization or ""
    bits, group = int(name.removeprefix("hqq-int")), job.training.quantization_group or 64
    plain = usual.plain

    def quantized(*args: Any) -> Any:
        made = replaced(plain(*args), bits, group)
        for parameter in made.parameters():
            parameter.requires_grad = False
        return made

    with mock.patch.object(usual, "plain", quantized):
        return fake_step(job, spec, elsewhere=("training.quantization", "training.quantization_group"))


def hqq_serving(job: Job, spec: DecoderSpec) -> Counted:
    """What `fake_serving` counts, likewise."""
    bits = int(job.serving.weights.removeprefix("hqq-int"))
    plain = transformers.AutoModelForCausalLM.from_config

    def quantized(config: Any) -> Any:
        return replaced(plain(config), bits, 64)

    with mock.patch.object(transformers.AutoModelForCausalLM, "from_config", quantized):
        return fake_serving(job, spec, elsewhere=("serving.weights",))


def replaced(model: Any, bits: int, group: int) -> Any:
    """The model with HQQ's layers in the place of all of torch's but the output layer."""
    output = model.get_output_embeddings()
    for path, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and layer is not output:
            model.set_submodule(path, linear(layer, bits, group))
    return model


def linear(layer: nn.Linear, bits: int, group: int) -> HQQLinear:
    """HQQ's layer in the place of one of torch's, without numbers: its codes, and the scales and zero points beside them."""
    made: Any = HQQLinear(None, BaseQuantizeConfig(nbits=bits, group_size=group, axis=1), device="cpu", initialize=False)
    made.in_features, made.out_features, made.bias = layer.in_features, layer.out_features, layer.bias
    groups = layer.in_features * layer.out_features // group
    codes = torch.empty(groups // PER_BYTE[bits], group, dtype=torch.uint8)
    made.W_q = nn.Parameter(codes, requires_grad=False)
    for end in ("scale", "zero"):
        made.register_buffer("of_" + end, torch.empty(groups, 1, dtype=layer.weight.dtype))
    made.meta = {
        "nbits": bits,
        "group_size": group,
        "shape": layer.weight.shape,
        "axis": 1,
        "packing": Quantizer.bit_to_packing[bits],
        "view_as_float": False,
        "quant_zero": False,
        "quant_scale": False,
        "compute_dtype": layer.weight.dtype,
        "scale": made.of_scale,
        "zero": made.of_zero,
    }
    made.ready = True
    return made
