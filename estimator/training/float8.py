"""What torchao's products in fp8 do not run with, or are not modelled with yet."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job
from estimator.families.spec import ModelSpec
from estimator.parallel.strategies import strategy_of
from estimator.tape.float8 import ALIGNMENT
from estimator.tape.gpu import Gpu
from estimator.training.recipes import MIXED, TRUE

ADA = (8, 9)
"""The first of NVIDIA's compute capabilities with products in fp8."""
WHERE = "training.float8"


def check_float8(job: Job, spec: ModelSpec, gpu: Gpu) -> None:
    """Raise `InvalidJob` or `NotModelled` for a training job whose products in fp8 do not fit the rest of it."""
    training, strategy = job.training, strategy_of(job)
    if training.float8 is None:
        return
    if not gpu.at_least(ADA):
        raise Contradiction(
            "products in fp8 need compute capability 8.9 or more (Ada, Hopper, Blackwell): name such a hardware.gpu", WHERE
        )
    tokens = training.micro_batch_size * training.sequence_length
    if training.float8 != "rowwise_with_gw_hp" and tokens % ALIGNMENT:
        raise Contradiction(
            f"products in fp8 take multiples of {ALIGNMENT}: not {tokens} tokens in a pass; pad, or write rowwise_with_gw_hp",
            WHERE,
        )
    if spec.adds_in_place:  # to a view that torchao's own backward pass made: torch raises a RuntimeError
        raise Contradiction(
            f"{spec.model_type} adds in place to what a linear module returned, which torchao's do not allow: leave it out", WHERE
        )
    for unknown, what, where in (
        (training.head != "causal-lm", f"a {training.head}: only causal-lm is", "training.head"),
        (training.adapter, "an adapter", "training.adapter"),
        (training.objective, "an objective", "training.objective"),
        (training.precision not in (*TRUE, *MIXED), training.precision, "training.precision"),
        ("float8" not in strategy.models, f"{strategy}: one GPU, ddp and fsdp2 are", "parallelism.strategy"),
        (any(place != "none" for _, place in job.offload), "offloading", "offload"),
    ):
        if unknown:
            raise NotModelled(f"float8 is not modelled yet with {what}", where)
