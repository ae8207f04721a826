"""Bytes of a model's weights on one rank, as SGLang logs them ("Load weight end, mem usage"): what the driver has less.

That is segments of torch's caching allocator, not tensors: sglang/srt/utils/common.py, `get_available_gpu_memory`, of 0.5.23. Its
layers have vLLM's shapes; rotary tables are in float32 (layers/rotary_embedding/base.py), the product that unpacks latents is
held a second time, as the two that attention multiplies with (models/deepseek_common/deepseek_weight_loader.py, `w_kc`, `w_vc`),
and experts in MXFP4 are filled up (layers/moe/fused_moe_triton/layer.py, layers/quantization/mxfp4.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from estimator.contract.job import Serving
from estimator.families.cache_layers import compresses
from estimator.families.spec import ModelSpec
from estimator.runtime.allocator import LARGE, LARGE_SEGMENT, ROUNDING, SMALL, SMALL_SEGMENT
from estimator.serving.drafts import draft_tensors
from estimator.serving.sglang.backend import held_by_sglang, runs_modules
from estimator.serving.sglang.ranks import Ranks
from estimator.serving.sglang.speculation import drafter_of
from estimator.serving.tensors import Held
from estimator.serving.weights import held_wide, rotary_tables, stored_sizes
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.gpu import Gpu

WIDTH, WIDTH_BLACKWELL, HIDDEN_BLACKWELL = 64, 128, 256
"""What an expert's width, and hidden states, are filled up to multiples of in MXFP4."""
GROUP = 32
"""Weights that share a scale of one byte."""
BLACKWELL = (10, 0)
ABSORBED = "kv_b_proj"


def weights_bytes(serving: Serving, spec: ModelSpec, ranks: Ranks, plain: DType, gpu: Gpu) -> int:
    """Of one rank; what is not quantized is in the type `plain`."""
    tables = () if runs_modules(spec) else rotary_tables(spec, dtypes.float32)
    tensors, text = held_by_sglang(spec, ranks), spec.language_model
    wide = [each for each in tensors if held_wide(each, text.held_in_float32)]
    others = tuple(each for each in tensors if each not in wide)
    sizes = _sizes(serving, others, plain, gpu, compresses(text.cache_layers)) + [(size, 1) for size in tables]
    return _segments(sizes + [(each.numel * dtypes.float32.itemsize, each.times) for each in wide])


def draft_bytes(serving: Serving, spec: ModelSpec, tensor: int, plain: DType, gpu: Gpu) -> int:
    """Of what guesses tokens ahead, on one rank."""
    drafter = drafter_of(serving, spec)
    if drafter is None:
        return 0
    sizes = _sizes(drafter.stored(serving), draft_tensors(drafter, spec, tensor), plain, gpu)
    if drafter.kind == "model" and drafter.spec is not None:
        sizes += [(size, 1) for size in rotary_tables(drafter.spec, dtypes.float32)]
    return _segments(sizes)


def _sizes(serving: Serving, tensors: tuple[Held, ...], plain: DType, gpu: Gpu, as_stored: bool = False) -> list[tuple[int, int]]:
    """`as_stored`: whether experts in MXFP4 are held as the checkpoint has them, as CUTLASS's kernels and TensorRT-LLM's take
    them, of widths that are multiples of 128 (layers/quantization/mxfp4_flashinfer_cutlass_moe.py, .._trtllm_moe.py)."""
    sizes = list(stored_sizes(serving, tensors, plain, lambda each: _stored(each) if as_stored else _mxfp4(each, gpu)))
    return sizes + [(each.numel * plain.itemsize, each.times) for each in tensors if each.end == ABSORBED]


def _segments(sizes: list[tuple[int, int]]) -> int:
    """Bytes of the segments that tensors lie in."""
    small = middling = total = 0
    for size, times in sizes:
        if size <= SMALL:
            small += size * times
        elif size < LARGE:
            middling += size * times
        else:
            total += _up(size, ROUNDING) * times
    return total + _up(small, SMALL_SEGMENT) + _up(middling, LARGE_SEGMENT)


def _stored(each: Held) -> Iterator[int]:
    yield each.numel // 2
    yield each.numel // GROUP


def _mxfp4(each: Held, gpu: Gpu) -> Iterator[int]:
    """Bytes of the codes and of the scales of a tensor of experts [experts, out, in]: FlashInfer's on Blackwell; before, those of
    Triton's kernels, beside which the scales that were loaded stay."""
    experts, outputs, inputs = each.shape
    blackwell = gpu.at_least(BLACKWELL)
    width, hidden = (WIDTH_BLACKWELL, HIDDEN_BLACKWELL) if blackwell else (WIDTH, 1)
    if each.end == "gate_up_proj":
        outputs, inputs = 2 * _up(outputs // 2, width), _up(inputs, hidden)
    else:
        outputs, inputs = _up(outputs, hidden), _up(inputs, width)
    yield experts * outputs * inputs // 2
    for _ in range(1 if blackwell else 2):
        yield experts * outputs * inputs // GROUP


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
