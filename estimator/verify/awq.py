"""GPTQModel's AWQ layers in a model, and their kernels' results on a machine that cannot run them."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from gptqmodel.nn_modules.qlinear import gemm_awq  # type: ignore[import-not-found]

from estimator.contract.job import Training
from estimator.verify.fp8 import changed


def replace(model: Any, training: Training) -> None:
    """Put layers with which adapters can be trained in the place of all linear layers, but the output layer and what the job
    leaves out."""
    gemm_awq.awq_dequantize_weights, gemm_awq.awq_gemm_forward = dequantized, multiplied
    group = training.quantization_group or 128
    for name, module in changed(model, training).items():
        model.set_submodule(name, _layer(module.in_features, module.out_features, group, module.bias is not None))


def _layer(inputs: int, outputs: int, group: int, bias: bool) -> Any:
    with mock.patch.object(gemm_awq.AwqGEMMLinear, "validate_once", return_value=(True, None)):
        made = gemm_awq.AwqGEMMLinear(
            bits=4,
            group_size=group,
            sym=False,
            desc_act=False,
            in_features=inputs,
            out_features=outputs,
            bias=bias,
            register_buffers=True,
        )
    made.requires_grad_(False)
    return made


def dequantized(codes: torch.Tensor, scales: torch.Tensor, *settings: Any) -> torch.Tensor:
    """`dequantize_weights_cuda`: the weight [in, out] in the type of its scales."""
    return scales.new_empty(codes.shape[0], 8 * codes.shape[1])


def multiplied(x: torch.Tensor, codes: torch.Tensor, scales: Any, zeros: Any, splits: int, fp32_accum: bool) -> torch.Tensor:
    """`launch_gemm_forward_cuda_fp32_reduce`: partial products in float32, and their sum."""
    assert fp32_accum
    parts = x.new_empty(splits, len(x), 8 * codes.shape[1], dtype=torch.float32)
    out = x.new_empty(parts.shape[1:])
    del parts
    return out
