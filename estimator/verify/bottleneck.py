"""AdapterHub's bottleneck adapters in a model, by the library itself (adapters 1.3), which runs with transformers 4.57."""

from __future__ import annotations

from typing import Any

import adapters  # type: ignore[import-not-found]

from estimator.contract.job import Bottleneck

NOT_ITS_OWN = {"type", "config", "dtype"}
"""Keys of a job's adapter that are none of the library's."""


def adapted(model: Any, asked: Bottleneck) -> Any:
    """The model with the adapter, whose parameters have torch's default type, and all below its head frozen."""
    adapters.init(model)
    model.add_adapter("default", config=adapters.BnConfig(**asked.model_dump(exclude=NOT_ITS_OWN)))
    model.train_adapter("default")
    return model
