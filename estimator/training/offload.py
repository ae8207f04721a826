"""Whether what a job offloads goes with its strategy and the rest of it."""

from __future__ import annotations

from estimator.contract.errors import NotModelled
from estimator.contract.job import Job
from estimator.parallel.offloading import check_beside, offloads
from estimator.parallel.strategies import strategy_of


def check_offload(job: Job) -> None:
    """Raise `InvalidJob` for what no library does, and `NotModelled`."""
    if job.task == "serve":
        if any(where != "none" for _, where in job.offload):
            raise NotModelled("offloading while serving is not modelled yet; leave it out", "offload")
        return
    if offloads(job) and job.training.implementation != "megatron":  # whose own checks look at it
        check_beside(job)
        strategy_of(job).check_offload(job)
