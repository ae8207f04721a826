"""What engines say themselves when they do not start: vLLM's and SGLang's own words, with the figures that are in them.

vLLM v1/core/kv_cache_utils.py (`check_enough_kv_cache_memory`), worker/worker.py (V0), v1/worker/utils.py (`request_memory`),
v1/worker/gpu_model_runner.py (`_dummy_sampler_run`); SGLang srt/model_executor/model_runner.py (`init_memory_pool`).
"""

from __future__ import annotations

import re

from estimator.measured.record import Record, amount

VLLM, SGLANG = "vLLM log", "SGLang log"
_GB = r"([\d.]+ ?Gi?B)"
_NEEDED = re.compile(
    rf"max seq len \((\d+)\).{{0,40}}?{_GB} (?:of )?KV cache is needed.{{0,80}}?KV cache memory \({_GB}\)", re.DOTALL
)
_LONGEST = re.compile(r"estimated maximum model length is (\d+)")
_TOKENS = re.compile(
    r"max seq len \((\d+)\) is larger than the maximum number of tokens that can be stored in (?:the )?KV cache \((\d+)\)"
)
_SAMPLER = re.compile(r"warming up sampler with (\d+) dummy requests")
_FREE = re.compile(
    r"Free memory on device \S* ?\(([\d.]+)/([\d.]+) GiB\).{0,40}?is less than desired GPU memory utilization", re.DOTALL
)
_NO_ROOM = re.compile(r"Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=([\d.]+)")
_NOTHING = re.compile(r"No available memory for the cache blocks")
WEIGHTS, NOTHING = "weights_leave_nothing", "no_cache"


def read(text: str) -> Record | None:
    """The last that the log has; None if it has none. `numbers`: context, longest (tokens), sequences, and 1 for a share that
    the weights fill, or that leaves no cache."""
    if found := _last(_NEEDED, text):
        numbers = {"context": int(found[1])}
        if longest := _last(_LONGEST, text):
            numbers["longest"] = int(longest[1])
        return Record(VLLM, {"needed": amount(found[2]), "cache": amount(found[3])}, numbers=numbers)
    if found := _last(_TOKENS, text):
        held = int(found[2])
        return Record(VLLM, numbers={"context": int(found[1]), "longest": held, "cache_tokens": held})
    if found := _last(_SAMPLER, text):
        return Record(VLLM, numbers={"sequences": int(found[1])})
    if found := _last(_FREE, text):
        return Record(VLLM, {"free": amount(found[1], "GiB"), "capacity": amount(found[2], "GiB")}, numbers={"at_start": 1})
    if _NOTHING.search(text):
        return Record(VLLM, numbers={NOTHING: 1})
    if _NO_ROOM.search(text):
        return Record(SGLANG, numbers={WEIGHTS: 1})
    return None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for found in pattern.finditer(text):  # noqa: B007
        pass
    return found
