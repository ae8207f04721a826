"""ZeRO++: what DeepSpeed's stage 3 adds to exchange less between nodes (arXiv 2306.10209).

After deepspeed/runtime/zero/partition_parameters.py, stage3.py and runtime/comm/coalesced_collectives.py of DeepSpeed 0.19;
docs/zero.md has the line for each claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job

QUANTIZATION_GROUP = 8_000
"""Elements that share a float32 scale (`CUDAQuantizer.target_group_size`), at most: fewer, where they do not divide a part."""
IN_HALF = 2
"""Bytes per element that the kernels dequantize to: always float16."""
FIELDS = {"zero_hpz_partition_size": None, "zero_quantized_weights": False, "zero_quantized_gradients": False}


@dataclass(frozen=True, slots=True)
class ZeroPlusPlus:
    """`secondary`: ranks that hold a second copy of the parameters in parts (hpZ), 1 without. `weights` are gathered in int8
    (qwZ), `gradients` reduced in int4 (qgZ): within each of `nodes`, then between them."""

    secondary: int = 1
    weights: bool = False
    gradients: bool = False
    nodes: int = 1

    def arriving_bytes(self, elements: int, itemsize: int, largest: int) -> int:
        """The buffers in which so many elements come, the largest parameter's elements among them.

        Quantized ones are held with their scales until all are used, beside the float16 that they became, and a parameter is
        joined in float16 before it is of its own type (`AllGatherCoalescedHandle.wait`).
        """
        if not self.weights:
            return elements * itemsize
        return quantized_bytes(elements) + IN_HALF * (elements + largest)

    def gathered_bytes(self, elements: int, itemsize: int) -> int:
        """What is exchanged so that so many elements are on every rank."""
        return quantized_bytes(elements) if self.weights else elements * itemsize

    def reducing_bytes(self, elements: int, node: int) -> int:
        """The largest sum of buffers while a gradient of so many elements is reduced by two all-to-alls, after one of its size.

        `all_to_all_quant_reduce` has names for int4 sent and received in a node of so many ranks, the same of the part that is
        exchanged between nodes, and that in float16; each keeps the previous gradient's until it is assigned anew.
        """
        whole, part = ceil(elements / 2), ceil(elements / node / 2)
        half = IN_HALF * ceil(elements / node)
        return max(3 * whole + 2 * part + half, 2 * (whole + part + half))


def quantized_bytes(elements: int) -> int:
    """Bytes of so many elements in int8, with float32 scales."""
    return elements + 4 * ceil(elements / QUANTIZATION_GROUP)


def plus_plus(job: Job) -> ZeroPlusPlus:
    """The settings of ZeRO++ of a job with its defaults."""
    asked, nodes = job.parallelism, job.hardware.nodes
    quantized = asked.zero_quantized_gradients and nodes > 1
    return ZeroPlusPlus(asked.zero_hpz_partition_size or 1, asked.zero_quantized_weights, quantized, nodes)


def check_plus_plus(job: Job, data: int, stage: int) -> None:
    """Raise `InvalidJob` for what this stage of DeepSpeed does not do with so many data-parallel ranks, and `NotModelled`."""
    asked = job.parallelism
    given = [name for name, usual in FIELDS.items() if getattr(asked, name) != usual]
    if not given:
        return
    if stage != 3:
        raise Contradiction("only zero3 has it: leave it out", f"parallelism.{given[0]}")
    if data % (group := asked.zero_hpz_partition_size or 1):
        raise Contradiction(
            f"{data} data-parallel GPUs are not groups of {group}; write a number that divides them, as the GPUs of a node",
            "parallelism.zero_hpz_partition_size",
        )
    if job.offload.parameters != "none":
        raise NotModelled("ZeRO++ with offloaded parameters is not modelled yet; leave one out", f"parallelism.{given[0]}")
