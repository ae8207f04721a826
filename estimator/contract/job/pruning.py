"""Pruning: weights under masks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from estimator.contract.job.adapter import ALL_LINEAR, Targets
from estimator.contract.job.part import Part


class Pruning(Part):
    """Masks as torch.nn.utils.prune keeps them: zeros are stored, and nothing gets smaller."""

    targets: Targets = ALL_LINEAR
    amount: Annotated[float, Field(ge=0, lt=1)] | None = Field(None, description="share of zeros; no byte depends on it")
