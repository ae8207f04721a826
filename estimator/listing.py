"""What is known: the shipped models and accelerators, as rows."""

from __future__ import annotations

from typing import Any

from estimator import catalogue
from estimator.hardware.accelerator import FOLDER, accelerator
from estimator.pricing.prices import prices_of
from estimator.specs.published import model_folder, published


def models() -> list[dict[str, Any]]:
    """Every published model, smallest first."""
    found = [published(name) for name in catalogue.names(model_folder())]
    return [
        {
            "name": model.name,
            "parameters": int(model.parameters.value),
            "architecture": model.architecture.model_type,
            "layers": model.architecture.num_hidden_layers,
            "context": model.context or model.architecture.longest_sequence,
            "released": model.released,
            "licence": model.licence,
            "aliases": model.aliases,
        }
        for model in sorted(found, key=lambda m: m.parameters.value)
    ]


def gpus() -> list[dict[str, Any]]:
    """Every accelerator, smallest memory first."""
    found = [accelerator(name) for name in catalogue.names(FOLDER)]
    return [
        {
            "name": card.name,
            "memory_bytes": card.memory_bytes,
            "memory_verified": card.memory.verified,
            "bf16_tflops": card.peak["bf16"].value if "bf16" in card.peak else None,
            "bandwidth_gb_per_second": card.memory_bandwidth.value,
            "usd_per_gpu_hour": str(round(prices[0].usd_per_gpu_hour, 2)) if (prices := prices_of(card.name)) else None,
            "aliases": card.aliases,
        }
        for card in sorted(found, key=lambda c: c.memory_bytes)
    ]
