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
WEIGHTS = "q4_k_m"
"""The kind of file that a tag without a kind has."""
LOADED = {"mxfp4": "bf16"}
"""Of checkpoints in a format that GGUF has: all but its experts in this (ollama.com/library/gpt-oss: 14 GB of 20b)."""


def context(job: Job, spec: ModelSpec, card: Capacity) -> int | None:
    """Tokens of a context that nobody chose, by the memory of all GPUs, no more than the model was made for.

    None where no GPU was given.
    """
    if card.memory_bytes is None:
        return None
    memory = 0 if card.ram else card.memory_bytes * job.hardware.gpus
    tokens = next((tokens for least, tokens in CONTEXTS if memory >= least), SHORTEST)
    return min(tokens, spec.longest_sequence or tokens)
