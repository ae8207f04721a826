"""Within what the room lies that vLLM leaves for its cache, until its profile run is modelled as the engine runs it.

Before it sizes the cache, vLLM runs a dummy pass of `max_num_batched_tokens` tokens and samples for `max_num_seqs` sequences
(v1/worker/gpu_model_runner.py, `profile_run`), and takes torch's peak, what lies outside torch, and since 0.21 its CUDA graphs
from its share of the GPU. The context of CUDA, which is there before, is not charged. What is not derived is data: vllm.yaml.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from estimator.contract.units import GIB, MIB
from estimator.facts.fact import MeasuredFact, measured
from estimator.families.spec import DecoderSpec
from estimator.hardware.capacity import Capacity
from estimator.tape import dtypes

FILE = Path(__file__).parent / "vllm.yaml"
OTHERS = ("a100", "gb10")
"""How the names begin of GPUs that count as small, whatever they have."""


@cache
def facts() -> dict[str, MeasuredFact]:
    """What vLLM sets aside, by name."""
    return measured(FILE)


def cache_range(share: int, weights: int, shard: DecoderSpec, whole: DecoderSpec, tensor: int, card: Capacity) -> tuple[int, int]:
    """Least and most bytes per GPU that vLLM finds for its cache.

    `share`: bytes of the GPU that it may take; `weights`: of this rank, whose part of the model is `shard` of `whole`. Most:
    beside weights only the least that was seen outside torch. Least: the largest of the sampler's tensors and those of a layer,
    outside torch and for graphs the most that was seen.
    """
    outside = facts()["non_torch_tensor_parallel" if tensor > 1 else "non_torch"]
    most = share - weights - round(outside.low * MIB)
    aside = max(_sampler(whole, card), _layer(shard, card)) + round((outside.high + facts()["cuda_graphs"].high) * MIB)
    return max(0, share - weights - aside), max(0, most)


def _sampler(spec: DecoderSpec, card: Capacity) -> int:
    """Tensors of [max_num_seqs, vocabulary] in float32, of every rank: the logits are gathered."""
    rows = facts()[f"max_num_seqs{_size(card)}"].value
    return round(rows * spec.vocab_size * dtypes.float32.itemsize * facts()["sampler"].high)


def _layer(shard: DecoderSpec, card: Capacity) -> int:
    """A pass's hidden states and residual, with gate, up and their product of one layer, in two bytes."""
    tokens = facts()[f"max_num_batched_tokens{_size(card)}"].high
    return round(tokens * (2 * shard.hidden_size + 3 * shard.intermediate_size) * dtypes.bfloat16.itemsize)


def _size(card: Capacity) -> str:
    """Which of vLLM's two sets of defaults a GPU gets; an A100 without a name counts as what its memory says."""
    small = card.accelerator is not None and card.accelerator.name.startswith(OTHERS)
    enough = card.memory_bytes is not None and card.memory_bytes >= facts()["large"].value * GIB
    return "_large" if enough and not small else ""
