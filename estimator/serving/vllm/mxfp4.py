"""Experts in MXFP4 as vLLM's kernels hold them, which is more than the checkpoint's bytes.

After model_executor/layers/quantization/mxfp4.py of 0.11 and fused_moe/oracle/mxfp4.py of 0.19: before Hopper Marlin's kernels,
of widths rounded up; on Hopper Triton's, whose scales lie beside those that were loaded (third_party/triton_kernels,
tensor_details/layout_details/hopper_scale.py: rows in multiples of 256); on Blackwell FlashInfer's, of widths rounded up.
"""

from __future__ import annotations

from collections.abc import Iterator

from estimator.serving.tensors import Held
from estimator.tape.gpu import Gpu

GROUP = 32
"""Weights that share a scale of one byte."""
HOPPER, BLACKWELL = (9, 0), (10, 0)
ROWS = 256
"""Rows that scales come in on Hopper."""


MARLIN_WIDTH, MARLIN_HIDDEN = 128, 256
"""What an expert's width, and hidden states, are filled up to multiples of for Marlin's kernels and TensorRT-LLM's
(fused_moe/oracle/mxfp4.py of 0.33, `mxfp4_round_up_hidden_size_and_intermediate_size`)."""


def activated_sizes(each: Held) -> Iterator[int]:
    """Bytes of the codes and of the scales of a tensor of experts whose checkpoint has its activations in 8 bits, too (DeepSeek
    V4): Marlin's on Hopper, TensorRT-LLM's or DeepGEMM's on Blackwell, all of which are filled up alike."""
    experts, outputs, inputs = each.shape
    if each.end == "gate_up_proj":
        outputs, inputs = 2 * _up(outputs // 2, MARLIN_WIDTH), _up(inputs, MARLIN_HIDDEN)
    else:
        outputs, inputs = _up(outputs, MARLIN_HIDDEN), _up(inputs, MARLIN_WIDTH)
    yield experts * outputs * inputs // 2
    yield experts * outputs * inputs // GROUP


def mxfp4_sizes(each: Held, gpu: Gpu) -> Iterator[int]:
    """Bytes of the codes and of the scales of a tensor of experts [experts, out, in]."""
    experts, outputs, inputs = each.shape
    hopper = gpu.at_least(HOPPER) and not gpu.at_least(BLACKWELL)
    if not hopper:
        wide = 256 if gpu.at_least(BLACKWELL) else 128
        first = each.end == "gate_up_proj"
        outputs = 2 * _up(outputs // 2, wide) if first else _up(outputs, ROWS)
        inputs = _up(inputs, ROWS if first else wide)
    yield experts * outputs * inputs // 2
    scales = experts * outputs * -(-inputs // GROUP)
    yield scales
    if hopper:
        yield experts * _up(outputs, ROWS) * -(-inputs // GROUP)


def biases_are_wide(each: Held, gpu: Gpu) -> bool:
    """Whether it is experts' biases, which kernels from Hopper's on take in float32."""
    return each.kind == "experts" and len(each.shape) == 2 and gpu.at_least(HOPPER)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
