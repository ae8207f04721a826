"""Bytes of a model's weights on one rank, as TensorRT-LLM logs them ("Memory used after loading model weights (inside torch)").

Its layers have vLLM's shapes (tensorrt_llm/_torch/modules/linear.py, embedding.py, gated_mlp.py); its rotary table is in float32
(functional.py, `create_sinusoidal_positions`). Experts in MXFP4 are filled up as their kernels want them
(modules/fused_moe/quantization.py, `MXFP4WeightTRTLLMGenFusedMoEMethod`, `MXFP4WeightCutlassFusedMoEMethod`), and what unpacks
latents is held a second time for its keys (models/modeling_deepseekv3.py, `k_b_proj_trans`).
"""

from __future__ import annotations

from collections.abc import Iterator

from estimator.contract.job import Serving
from estimator.families.cache_layers import CacheLayer
from estimator.families.spec import ModelSpec
from estimator.serving.tensors import Held, Spread, held
from estimator.serving.weights import block_bytes, rotary_tables, stored_sizes
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.gpu import Gpu

GROUP = 32
"""Weights that share a scale of one byte."""
WIDTH, HIDDEN = 128, 512
"""What an expert's width, and hidden states that it reads, are filled up to multiples of in MXFP4 on Blackwell."""
DATA_CENTRE, BLACKWELL = 10, (10, 0)
"""The major compute capability of the data centres' Blackwell; the lowest of any."""
ABSORBED = "kv_b_proj"


def rank_tensors(serving: Serving, spec: ModelSpec, ranks: int) -> tuple[Held, ...]:
    """The tensors of one of `ranks` tensor-parallel ranks. Where attention is each rank's own, experts alone are shared out."""
    experts = serving.ep_size or 1
    whole = 1 if serving.enable_attention_dp else ranks
    return held(spec, whole, experts if experts > 1 else 0, spread=Spread(width=ranks // experts if ranks > 1 else 0))


def weights_bytes(serving: Serving, spec: ModelSpec, tensors: tuple[Held, ...], plain: DType, gpu: Gpu) -> int:
    """Of one rank; what is not quantized is in the type `plain`."""
    sizes = [*stored_sizes(serving, tensors, plain, lambda each: _mxfp4(each, gpu))]
    sizes += [(_keys(each, spec) * plain.itemsize, each.times) for each in tensors if each.end == ABSORBED]
    tables = rotary_tables(spec, dtypes.float32)
    return sum(map(block_bytes, tables)) + sum(times * block_bytes(size) for size, times in sizes)


def _keys(each: Held, spec: ModelSpec) -> int:
    """Of what unpacks latents the numbers that give keys: heads of `qk_nope_head_dim` beside `v_head_dim`."""
    keys, values = int(getattr(spec, "qk_nope_head_dim", 1)), int(getattr(spec, "v_head_dim", 1))
    return each.numel * keys // (keys + values)


def _mxfp4(each: Held, gpu: Gpu) -> Iterator[int]:
    """Bytes of the codes and of the scales of a tensor of experts [experts, out, in]: on the data centres' Blackwell for
    TensorRT-LLM's own kernels, on others for CUTLASS's; before, as they are stored, for Triton's."""
    experts, outputs, inputs = each.shape
    first, own = each.end == "gate_up_proj", gpu.capability[0] == DATA_CENTRE
    if gpu.at_least(BLACKWELL):
        if first:
            outputs, inputs = 2 * _up(outputs // 2, WIDTH), _up(inputs, HIDDEN if own else WIDTH)
        else:
            outputs, inputs = outputs if own else _up(outputs, WIDTH), _up(inputs, WIDTH)
    yield experts * outputs * inputs // 2
    yield experts * outputs * inputs // GROUP


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def token_bytes(serving: Serving, layers: tuple[CacheLayer, ...], ranks: int) -> int:
    """Bytes of a token of the cache on one of so many ranks among which attention is divided: latents are not, and key heads are
    copied where there are fewer (pyexecutor/resource_manager.py, `get_cache_bytes_per_token`). Unasked every layer keeps all
    tokens, those with a window too (`max_attention_window`)."""
    numbers = 0
    for layer in layers:
        heads = layer.heads if layer.kind == "latent" else -(-layer.heads // ranks)
        numbers += heads * (layer.key_size + layer.value_size)
    if serving.kv_cache == "fp4":
        return -(-numbers // 2) + -(-numbers // 16)
    return numbers * dtypes.BY_NAME[serving.kv_cache].itemsize
