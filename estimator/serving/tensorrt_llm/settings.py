"""TensorRT-LLM's settings, by its own names, the releases whose rules were read, and the models that it runs.

After tensorrt_llm/llmapi/llm_args.py (`KvCacheConfig`, `BaseLlmArgs`, `MoeConfig`) of 1.1 and 1.2, and the models' registry
(_torch/models/modeling_utils.py, `MODEL_CLASS_MAPPING`), which its documentation lists (models/supported-models.md).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from estimator.contract.errors import NotModelled
from estimator.facts import catalogue
from estimator.facts.fact import MeasuredFact, measured
from estimator.families.spec import ModelSpec

FACTS, MODELS = Path(__file__).parent / "facts.yaml", Path(__file__).parent / "models.yaml"
Release = tuple[int, int]
OLDEST, NEWEST = (1, 0), (1, 2)
"""Releases between which the rules were read: of the PyTorch backend, which is the only one from 1.0 on unasked."""
FRACTION, BATCH, TOKENS, BLOCK = 0.9, 2048, 8192, 32
"""`free_gpu_memory_fraction`, `max_batch_size`, `max_num_tokens` and `tokens_per_block` unasked."""


@cache
def facts() -> dict[str, MeasuredFact]:
    """What it takes that is not derived."""
    return measured(FACTS)


def release(version: str | None) -> Release:
    """A release, of which the third number changes nothing here. Raises `NotModelled` for one that was not read."""
    if version is None:
        return NEWEST
    first, second, *_ = (int(part) for part in version.split("."))
    if not OLDEST <= (first, second) <= NEWEST:
        known = " to ".join(".".join(map(str, one)) for one in (OLDEST, NEWEST))
        raise NotModelled(
            f"TensorRT-LLM {version} is not modelled; the PyTorch backend of releases {known} is", "serving.engine_version"
        )
    return first, second


def check_model(spec: ModelSpec, version: str | None) -> None:
    """Raise `NotModelled` for a model that a release's registry does not have, or whose memory is not modelled."""
    known: dict[str, Any] = catalogue.shipped(MODELS)
    first = next((str(one) for one, kinds in known["since"].items() if spec.model_type in kinds), None)
    if spec.model_type in known["unmodelled"] or (first and spec.encodes):
        raise NotModelled(f"TensorRT-LLM with {spec.model_type} models of this kind is not modelled", "serving.engine")
    if first is None:
        raise NotModelled(
            f"no {spec.model_type} models were seen in TensorRT-LLM's registry of 1.2: write engine vllm", "serving.engine"
        )
    if release(version) < release(first):
        raise NotModelled(
            f"TensorRT-LLM runs {spec.model_type} models since {first}: write it, or leave the release out",
            "serving.engine_version",
        )
