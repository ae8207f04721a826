"""What Ollama asks of llama.cpp that llama.cpp would not do by itself.

After Ollama 0.33: server/routes.go (the context by the memory of all GPUs), llm/llama_server.go (`-c` of all slots together,
`-np`; never longer than the model was trained for). OLLAMA_NUM_PARALLEL is `serving.concurrency`, OLLAMA_KV_CACHE_TYPE
`serving.kv_cache`, num_ctx `serving.context`, num_gpu `serving.gpu_layers`, num_batch `serving.ubatch`.
"""

from __future__ import annotations

from estimator.contract.job import Job
from estimator.contract.units import GIB
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity

CONTEXTS = ((47 * GIB, 262_144), (23 * GIB, 32_768))
"""(bytes of all GPUs, from which on, tokens of a context)."""
SHORTEST = 4096
"""Tokens of a context on less."""


def context(job: Job, spec: ModelSpec, card: Capacity) -> int | None:
    """Tokens of a context that nobody chose, by the memory of all GPUs, no more than the model was made for.

    None where no GPU was given.
    """
    if card.memory_bytes is None:
        return None
    memory = card.memory_bytes * job.hardware.gpus
    tokens = next((tokens for least, tokens in CONTEXTS if memory >= least), SHORTEST)
    return min(tokens, spec.longest_sequence or tokens)


def weights(job: Job, spec: ModelSpec, card: Capacity) -> str:
    """The kind of file that a tag without a kind has: Q4_K_M, but of gpt-oss the types of its checkpoint, experts in MXFP4 and
    all else in bf16 (ollama.com/library/gpt-oss: 14 GB)."""
    return "bf16" if spec.can.graph == "gpt-oss" else "q4_k_m"
