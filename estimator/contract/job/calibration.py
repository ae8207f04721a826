"""What was measured on one's own machine and is used in place of constants that are measured anyway (`willitfit calibrate`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from estimator.contract.job.part import Bytes, Part

Ratio = Annotated[float, Field(ge=0.2, le=5, allow_inf_nan=False)]


class Calibration(Part):
    """Constants of one machine. None of them scales what torch allocates."""

    card: str = Field(description="the accelerator on which it was measured; jobs on others are refused")
    kernels: Ratio = Field(1.0, description="seconds of kernels there, for each second of their curves")
    exchanges: Ratio = Field(1.0, description="seconds of exchanges between GPUs there, for each second that is reckoned")
    context: Bytes | None = Field(None, description="what the CUDA context takes there: 520MiB")
    records: Annotated[int, Field(ge=0, le=10**6)] = Field(0, description="how many records it was made of")
    as_of: str = Field("", max_length=40, description="the day on which it was made")
