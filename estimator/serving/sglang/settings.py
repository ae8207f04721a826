"""SGLang's settings, by its own names, what it takes for them on a GPU, and what differs between its releases.

After sglang/srt/arg_groups/memory_hook.py (`handle_gpu_memory_settings`, `reserve_for_graph_mb`, `adjust_mem_fraction_for_vlm`)
and cuda_graph_hook.py of 0.5.23; server_args.py of 0.4.10, 0.5.1 to 0.5.12, 0.5.14, 0.5.17, 0.5.18 and 0.5.20.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from estimator.contract.errors import NotModelled
from estimator.contract.job import Job, Serving
from estimator.contract.units import KIB, MIB
from estimator.facts import catalogue
from estimator.facts.fact import MeasuredFact, measured
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity

FACTS, TIERS = Path(__file__).parent / "facts.yaml", Path(__file__).parent / "tiers.yaml"
Release = tuple[int, int, int]
OLDEST, NEWEST = (0, 4, 10), (0, 5, 23)
"""Releases between which the rules were read."""
BY_WHAT_RUNS, PREFILL_GRAPHS, UNCAPTURED = (0, 5, 3), (0, 5, 10), (0, 5, 17)
PADDED_STATES, PICTURES_KEPT = (0, 5, 17), (0, 5, 20)
"""Since when: what is left free follows from what runs; prompts are captured as graphs unasked; without graphs nothing is kept
for them; a slot of states is never used; memory for the embeddings of images is kept beside the pool."""
RATIO, STATES = 0.8, 0.9
"""`swa_full_tokens_ratio` and `mamba_full_memory_ratio`, unasked."""
PAGE = 1
"""Tokens of a page unasked."""
LATENT_GRAPHS, GRAPH, LARGE, FLOOR = 1536, 8, 60 * KIB, 10 * KIB
"""MiB: for graphs of prompts of latent attention, for each of others; GPUs of more than `LARGE` leave at least `FLOOR`."""
INDEXED_PAGE, PICKED_PAGE, BLACKWELL = 64, 128, 10.0
"""Tokens of a page where an indexer chooses tokens, and where it picks blocks (arg_groups/model_overrides/minimax_m3.py); the
compute capability from which the cache is in FP8 where it chooses tokens."""
PICTURES = 100
"""MiB for the embeddings of images (`SGLANG_VLM_CACHE_SIZE_MB`)."""


@cache
def facts() -> dict[str, MeasuredFact]:
    """What is set up before the weights and not derived."""
    return measured(FACTS)


def release(version: str | None) -> Release:
    """A release, of three numbers. Raises `NotModelled` for one whose rules were not read."""
    if version is None:
        return NEWEST
    first, second, third = (*(int(part) for part in version.split(".")), 0, 0)[:3]
    if not OLDEST <= (first, second, third) <= NEWEST:
        known = " to ".join(".".join(map(str, one)) for one in (OLDEST, NEWEST))
        raise NotModelled(f"SGLang {version} is not modelled; releases {known} are", "serving.engine_version")
    return first, second, third


def visible_mib(card: Capacity) -> float | None:
    """MiB that nvidia-smi shows of a GPU, by which SGLang chooses; None where no GPU was given."""
    return None if card.framebuffer_bytes is None else card.framebuffer_bytes / MIB


def _tier(version: str | None, card: Capacity) -> dict[str, Any] | None:
    memory = visible_mib(card)
    if memory is None:
        return None
    known = catalogue.shipped(TIERS)["releases"]
    tiers = next(one["tiers"] for one in known if release(one["since"]) <= release(version))
    found: dict[str, Any] = next(
        tier for tier in tiers if memory < tier.get("below_gib", memory) * KIB or "below_gib" not in tier
    )
    return found


def chunked_prefill_size(job: Job, spec: ModelSpec, card: Capacity) -> int | None:
    """Tokens of prompts in a pass."""
    tier = _tier(job.serving.engine_version, card)
    return None if tier is None else int(tier["chunked_prefill_size"])


def cuda_graph_max_bs(job: Job, spec: ModelSpec, card: Capacity) -> int | None:
    """Sequences of the largest decoding step that is captured; since 0.5.23 no more than run at the same time."""
    tier = _tier(job.serving.engine_version, card)
    if tier is None:
        return None
    most = int(tier["graphs_of_four" if job.parallelism.tensor >= 4 else "graphs"])
    running = job.serving.max_running_requests
    return min(most, running) if running and release(job.serving.engine_version) >= NEWEST else most


def captures(asked: Serving) -> bool:
    """Whether a step of all sequences is captured: one of more than the largest is launched kernel by kernel
    (model_executor/cuda_graph_runner.py, `can_run`)."""
    return not asked.disable_cuda_graph and asked.concurrency <= (asked.cuda_graph_max_bs or asked.concurrency)


def mem_fraction_static(job: Job, spec: ModelSpec, card: Capacity) -> float | None:
    """The share of what is free before loading that weights and pools may have:

        (GPU - reserved) / GPU,  reserved = 512 MiB + 1.5 x tokens of a prefill + 128 x GPUs of a replica + graphs

    in MiB, at least 10 GiB of GPUs with more than 60; models that see images get less of it.
    """
    memory, asked = visible_mib(card), job.serving
    tier = _tier(asked.engine_version, card)
    if memory is None or tier is None:
        return None
    if release(asked.engine_version) < BY_WHAT_RUNS:
        reserved = (tier["reserved_gib"] + tier["reserved_gib_each"] * job.parallelism.tensor) * KIB
    else:
        assert asked.chunked_prefill_size
        ranks = job.parallelism.tensor * job.parallelism.pipeline
        reserved = 512 + 1.5 * max(asked.chunked_prefill_size, 2048) + ranks / 8 * KIB + _graphs(job, spec, card)
        reserved = max(reserved, FLOOR) if memory > LARGE else reserved
    found: float = round(round((memory - reserved) / memory, 3) * _seeing(spec), 6)
    return found


def _graphs(job: Job, spec: ModelSpec, card: Capacity) -> float:
    """MiB for graphs: of decoding steps, and of prompts of a model for texts on a GPU of NVIDIA's."""
    asked, version = job.serving, release(job.serving.engine_version)
    assert asked.cuda_graph_max_bs
    assert asked.chunked_prefill_size
    decoding: float = 0 if asked.disable_cuda_graph and version >= UNCAPTURED else 2 * asked.cuda_graph_max_bs
    if (groups := asked.attn_dp_size or 1) > 1:  # what ranks are filled up to
        decoding += asked.cuda_graph_max_bs * groups * (4.5 if asked.cuda_graph_max_bs > 300 else 3)
    if job.parallelism.pipeline > 1:
        return decoding
    other = card.accelerator is not None and card.accelerator.vendor != "nvidia"
    if version < PREFILL_GRAPHS or asked.disable_cuda_graph or other:
        return decoding
    if multimodal(spec) and not (spec.captured_in_sglang and version >= NEWEST):
        return decoding
    if any(layer.kind in ("latent", "compressed") for layer in spec.cache_layers):
        return decoding + LATENT_GRAPHS
    return decoding + GRAPH * captured_prompts(asked.chunked_prefill_size)


def captured_prompts(tokens: int) -> int:
    """How many lengths of prompts, up to so many tokens, are captured (`generate_prefill_cuda_graph_batch_sizes`)."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, tokens + 1, 512))
    return sum(1 for first, end, step in steps for size in range(first, end, step) if size <= tokens)


def multimodal(spec: ModelSpec) -> bool:
    """Whether it reads more than text, unasked: images, or what is heard."""
    sees = spec.language_model is not spec and spec.images_in_sglang == "read"
    return sees or any(layer.kind == "cross" for layer in spec.cache_layers)


def _seeing(spec: ModelSpec) -> float:
    """The part of its share that a model which sees images gets: by the size of its tower beside a ViT-L/14's. The configuration
    of one that hears has no `vision_config`, or in its thinker's alone, which is not looked at."""
    if not multimodal(spec) or spec.hears:
        return 1.0
    from estimator.families.parts import ComposedSpec

    if not isinstance(spec, ComposedSpec):
        return 1.0
    said = spec.vision_config.config()
    layers, width = float(said.get("num_hidden_layers", 24)), float(said.get("hidden_size", 1024))
    larger: float = layers * width**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (larger - 1)))


def pictures_bytes(version: str | None, spec: ModelSpec) -> int:
    """What is kept beside the pool for what images become."""
    return PICTURES * MIB if multimodal(spec) and release(version) >= PICTURES_KEPT else 0


def _indexed(job: Job, spec: ModelSpec) -> bool:
    return any(layer.kind == "indexer" and layer.scaled for layer in spec.cache_layers)


def page_size(job: Job, spec: ModelSpec, card: Capacity) -> int | None:
    """Tokens of a page (arg_groups/model_overrides/deepseek_v2.py); None for what SGLang takes of other models."""
    if any(layer.kind == "indexer" and not layer.scaled for layer in spec.cache_layers):
        return PICKED_PAGE
    return INDEXED_PAGE if _indexed(job, spec) else None


def kv_cache(job: Job, spec: ModelSpec, card: Capacity) -> str | None:
    """The type of the cache (arg_groups/overrides.py, `_dsa_kv_cache_dtype_default`); None for the weights' own."""
    newest = card.compute_capability is not None and float(card.compute_capability) >= BLACKWELL
    return "fp8" if newest and _indexed(job, spec) else None
