"""Bytes of a model's weights on one rank, as vLLM logs them ("Model loading took"): each tensor in the block that holds it.

A log is the difference of `torch.cuda.memory_allocated` around loading, rotary tables included
(vllm/model_executor/layers/rotary_embedding/base.py: cosines and sines of all positions, in the model's type).
"""

from __future__ import annotations

from functools import partial

from estimator.contract.job import Serving
from estimator.families.cache_layers import compresses
from estimator.families.spec import ModelSpec
from estimator.parallel.topology import Topology
from estimator.serving.drafts import Drafter, draft_tensors
from estimator.serving.tensors import Held, Spread, held
from estimator.serving.vllm.adapters import slots
from estimator.serving.vllm.apart import offloaded_bytes
from estimator.serving.vllm.mxfp4 import activated_sizes, biases_are_wide, mxfp4_sizes
from estimator.serving.vllm.settings import SHARED_WHOLE, release
from estimator.serving.vllm.sparse import chosen_bytes
from estimator.serving.weights import block_bytes, held_wide, quantized, rotary_tables, stored_sizes
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.gpu import Gpu

ABSORBED = "kv_b_proj"
SHARED = ("shared_expert", "shared_mlp")
"""Parts of the names of experts that all tokens go to."""


def rank_tensors(serving: Serving, spec: ModelSpec, place: Topology) -> tuple[Held, ...]:
    """The tensors of one rank: of `place.stage`, experts over the replicas of one engine too, whole ones, or their widths
    (fused_moe/config.py, `FusedMoEParallelConfig`)."""
    experts, spread = _experts(serving, place)
    spread = spread._replace(seen_whole=spec.seen_whole_in_vllm)
    return held(spec, place.tensor, experts, serving.runner == "pooling", (place.stage, place.pipeline), spread)


def _experts(serving: Serving, place: Topology) -> tuple[int, Spread]:
    """Ranks that hold whole experts, and those that share their widths. Where tokens of several tensor-parallel groups meet, each
    rank has a part of them for experts that all share, and these whole (config/parallel.py, `use_sequence_parallel_moe`)."""
    copies = replicas(serving, place)
    ranks = place.tensor * copies
    if not serving.enable_expert_parallel:
        return 0, Spread(width=ranks)
    apart = copies > 1 and place.tensor > 1 and release(serving.engine_version) >= SHARED_WHOLE
    return ranks, Spread(whole=SHARED if apart else ())


def replicas(serving: Serving, place: Topology) -> int:
    """Replicas of one engine, whose tokens meet at the experts."""
    return serving.data_parallel_size or (place.data if serving.enable_expert_parallel else 1)


def weights_bytes(serving: Serving, spec: ModelSpec, place: Topology, plain: DType, gpu: Gpu) -> int:
    """Of one rank; what is not quantized is in the type `plain`."""
    tensors, text = rank_tensors(serving, spec, place), spec.language_model
    wide = [each for each in tensors if held_wide(each, text.held_in_float32) or (text.float32_router and each.end == "gate")]
    heard = [each for each in tensors if each.heard and held_wide(each, spec.ears_in_float32)]
    wide += [] if serving.language_model_only else heard
    wide += [each for each in tensors if serving.weights == "mxfp4" and biases_are_wide(each, gpu)]
    others, own = [each for each in tensors if each not in wide], compresses(text.cache_layers)
    stored = partial(
        stored_sizes, serving, plain=plain, mxfp4=lambda each: activated_sizes(each) if own else mxfp4_sizes(each, gpu)
    )
    sizes = [*stored(others)]
    sizes += [(each.numel * dtypes.float32.itemsize, each.times) for each in wide]
    sizes += _absorbed(serving, tensors, plain)
    sizes.append((chosen_bytes(serving, spec), 1))
    sizes.append(((serving.max_num_batched_tokens or 0) * spec.kept_inputs * plain.itemsize, 1))
    sizes.append((0 if serving.language_model_only else spec.float32_tables * dtypes.float32.itemsize, 1))
    if serving.enable_lora:
        sizes += slots(serving, spec, tensors, plain, (place.stage, place.pipeline))
    whole = sum(map(block_bytes, rotary_tables(spec, plain))) + sum(times * block_bytes(size) for size, times in sizes)
    return whole - offloaded_bytes(serving, others, lambda each: stored([each]))


def _absorbed(serving: Serving, tensors: tuple[Held, ...], plain: DType) -> list[tuple[int, int]]:
    """What unpacks latents, a second time and not quantized, as the two that decoding multiplies with; where it is not quantized
    these are the layer's own (layers/attention/mla_attention.py, `split_kv_b_proj`)."""
    return [(each.numel * plain.itemsize, each.times) for each in tensors if each.end == ABSORBED and quantized(each, serving)]


def draft_parts(serving: Serving, drafter: Drafter | None, spec: ModelSpec, place: Topology) -> tuple[Held, ...]:
    """The tensors of one rank that guess tokens ahead."""
    return draft_tensors(drafter, spec, place.tensor, _experts(serving, place)[0])


def draft_bytes(serving: Serving, drafter: Drafter | None, parts: tuple[Held, ...], plain: DType, gpu: Gpu) -> int:
    """Of what guesses tokens ahead, on one rank that holds `parts` of it; of a model with its rotary tables."""
    if drafter is None:
        return 0
    sizes = [*stored_sizes(drafter.stored(serving), parts, plain, lambda each: mxfp4_sizes(each, gpu))]
    sizes += _absorbed(drafter.stored(serving), parts, plain)
    tables = rotary_tables(drafter.spec, plain) if drafter.kind == "model" and drafter.spec is not None else ()
    return sum(map(block_bytes, tables)) + sum(times * block_bytes(size) for size, times in sizes)
