"""What a run does in addition to its training steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from estimator.contract.job.part import Count, Part

Hours = Annotated[float, Field(ge=0, le=10**4)]


class Run(Part):
    """What a run spends time on in addition to its training steps. A field that is left out is an assumption, which the answer
    states."""

    set_up: Hours | None = Field(None, description="hours from the start of the instances to the first step")
    evaluate_every: Count | None = Field(None, description="optimizer steps from one evaluation to the next; without it, none")
    evaluate_rows: Count | None = Field(None, description="sequences of one evaluation")
    save_every: Count | None = Field(
        None, description="optimizer steps from one checkpoint to the next; without it, one at the end"
    )
    save_bandwidth: Annotated[float, Field(gt=0, le=10**6)] | None = Field(
        None, description="GB/s that a node writes to its storage"
    )
    failures: Annotated[float, Field(ge=0, le=10)] | None = Field(None, description="failures for each day of a GPU; 0 for none")
    hours_lost: Hours | None = Field(None, description="hours of the run that are lost with each failure")

    @model_validator(mode="after")
    def _both(self) -> Run:
        if (self.evaluate_every is None) != (self.evaluate_rows is None):
            raise ValueError("evaluate_every and evaluate_rows come together: how often, and how much")
        return self
