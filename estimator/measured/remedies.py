"""What makes a step faster, by what it is bound by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from estimator.measured.profile import COMPUTE, COPIES, DATA, EXCHANGE, HOST, MEMORY

Change = dict[str, dict[str, Any]]


class Remedy(NamedTuple):
    """`change`: the settings of a job with its defaults, none where they are so already; None for what a job has no field for."""

    bound: str
    text: str
    change: Callable[[Mapping[str, Any]], Change | None] | None


def _setting(part: str, name: str, value: Any, *usual: Any) -> Callable[[Mapping[str, Any]], Change | None]:
    """A setting, where it is one of those that are `usual`."""

    def change(job: Mapping[str, Any]) -> Change | None:
        return {part: {name: value}} if job[part][name] in usual else None

    return change


def _twice(name: str) -> Callable[[Mapping[str, Any]], Change | None]:
    return lambda job: {"training": {name: 2 * job["training"][name]}}


def _not_recomputed(job: Mapping[str, Any]) -> Change | None:
    return {"training": {"activation_checkpointing": "none"}} if job["training"]["activation_checkpointing"] != "none" else None


def _overlapped(job: Mapping[str, Any]) -> Change | None:
    """Megatron's exchanges, hidden as far as they may be."""
    asked = job["parallelism"]
    if job["training"]["implementation"] != "megatron":
        return None
    among = asked["tensor"] > 1 and asked["sequence"] and not asked["tp_comm_overlap"]
    data = asked["strategy"] == "zero1" and not asked["overlap_param_gather"]
    hidden = {"tp_comm_overlap": True} if among else {}
    hidden |= {"overlap_grad_reduce": True, "overlap_param_gather": True} if data else {}
    return {"parallelism": hidden} if hidden else None


def _kept(job: Mapping[str, Any]) -> Change | None:
    """What is offloaded, kept."""
    given = {name: "none" for name, where in job["offload"].items() if where != "none"}
    return {"offload": given} if given else None


REMEDIES = (
    Remedy(COMPUTE, "no activation checkpointing: nothing is computed twice", _not_recomputed),
    Remedy(COMPUTE, "products in bf16, over float32 weights", _setting("training", "precision", "bf16-mixed", "32-true")),
    Remedy(COMPUTE, "products of float32 in TF32", _setting("training", "tf32", True, False)),
    Remedy(MEMORY, "attention in one kernel", _setting("training", "attention", "flash_attention_2", "eager")),
    Remedy(MEMORY, "Liger's fused kernels", _setting("training", "implementation", "liger", "transformers")),
    Remedy(
        MEMORY,
        "the optimizer in one kernel",
        _setting("training", "optimizer_implementation", "fused", "foreach", "forloop"),
    ),
    Remedy(
        EXCHANGE,
        "twice as many micro-batches in a step: half as many exchanges of gradients",
        _twice("gradient_accumulation_steps"),
    ),
    Remedy(EXCHANGE, "exchanges hidden beside products and passes", _overlapped),
    Remedy(
        EXCHANGE,
        "parameters stay gathered between forward and backward",
        _setting("parallelism", "reshard_after_forward", False, True),
    ),
    Remedy(HOST, "twice as many sequences at a time: as many kernels for twice the tokens", _twice("micro_batch_size")),
    Remedy(COPIES, "nothing offloaded", _kept),
    Remedy(HOST, "CUDA graphs or torch.compile: fewer launches", None),
    Remedy(DATA, "more workers of the data loader, and prefetching (num_workers, prefetch_factor)", None),
    Remedy(DATA, "tokens made before the training, not in it; files on a faster disk", None),
)
