"""Public reports of memory (tests/data/memory_reports.yaml), asked: in how many is the cause named?

`python -m tests.explained.reports` says it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from estimator import explain
from estimator.measured.answers import Explanation
from tests.jobs import ROOT, content

FIRST = 3
"""A reason counts as named where it is among the first so many."""


@cache
def reports() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = content(ROOT / "tests" / "data" / "memory_reports.yaml")["rows"]
    return found


ENGINES = {
    "failed_cache": (
        "allocating {} MiB on device 0: cudaMalloc failed: out of memory\n"
        "llama_kv_cache_init: failed to allocate buffer for kv cache"
    ),
    "kv_buffer": "llama_kv_cache_unified: CUDA0 KV buffer size = {} MiB",
    "failed_compute": "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size {}",
    "sglang_share": "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={}",
    "sampler": "CUDA out of memory occurred when warming up sampler with {} dummy requests.",
    "context": "To serve at least one request with the model's max seq len ({}), ",
    "needed": "({} GiB KV cache is needed, which is larger than ",
    "cache": "the available KV cache memory ({} GiB). ",
    "longest": "Based on the available memory, the estimated maximum model length is {}.",
}
"""Figures in the engines' words."""


def message(figures: dict[str, Any]) -> str:
    """The figures in torch's words, or an engine's."""
    if "no_cache" in figures:
        return "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
    if "tokens" in figures:
        words = "The model's max seq len ({context}) is larger than the maximum number of tokens that can be stored in "
        return (words + "KV cache ({tokens})").format(**figures)
    if figures.keys() <= ENGINES.keys():
        joint = "" if "context" in figures else "\n"
        return joint.join(ENGINES[name].format(amount) for name, amount in figures.items())
    if "nvidia_smi" in figures:
        return f"memory.used [MiB]\n{figures['nvidia_smi']}"
    if "requested" not in figures:
        return "\n".join(f"{name}: {amount}" for name, amount in figures.items())
    said = [f"CUDA out of memory. Tried to allocate {figures['requested']}. GPU 0 has a total capacity of {figures['capacity']}"]
    said.append(f" of which {figures['free']} is free.")
    if "used" in figures:
        said.append(f" Including non-PyTorch memory, this process has {figures['used']} memory in use.")
    if "allocated" in figures:
        said.append(f" Of the allocated memory {figures['allocated']} is allocated by PyTorch")
    if "unallocated" in figures:
        said.append(f", and {figures['unallocated']} is reserved by PyTorch but unallocated")
    if "reserved" in figures:
        said.append(f"; {figures['reserved']} reserved in total by PyTorch")
    return "".join(said)


def asked(row: dict[str, Any]) -> Explanation:
    """What we say of a report."""
    return explain(row["job"], message(row["message"]))


def names(row: dict[str, Any], found: Explanation) -> bool:
    """Whether that names what the thread found: a reason, or the component of the tensor."""
    cause = row["names"]
    if cause is None:
        return False
    if "slug" in cause:
        return cause["slug"] in [one.slug for one in found.hypotheses[:FIRST]]
    if found.verdict != "as predicted" or found.culprit is None:
        return False
    return all(getattr(found.culprit, what) == value for what, value in cause.items())


def main() -> None:
    rows = [(row, asked(row)) for row in reports()]
    for row, found in rows:
        print(f"{names(row, found)!s:5} {row['named']!s:5} {row['name']}: {found.verdict}: {found.text}")
        for one in found.hypotheses[:FIRST]:
            print(f"      {one.removed:.0%} {one.slug}: {one.text}")
    for held_out in (False, True):
        known = [(row, found) for row, found in rows if row["names"] and row.get("held_out", False) is held_out]
        which = "held out" if held_out else "looked at"
        print(f"{which}: {sum(names(row, found) for row, found in known)} of {len(known)} causes named")


if __name__ == "__main__":
    main()
