"""vLLM's engine on the GPU that trains (TRL 1.16, trl/generation/vllm_generation.py): weights and a cache of its own."""

from __future__ import annotations

from dataclasses import replace

from estimator.contract.errors import Contradiction
from estimator.contract.job import Job
from estimator.contract.units import gib
from estimator.families import count
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.runtime.overheads import Overhead
from estimator.tape.dtypes import bfloat16
from estimator.tape.replay import Replay

WHERE = "training.objective.generation"


def with_engine(beside: Overhead, job: Job, spec: ModelSpec, card: Capacity, simulated: Replay) -> Overhead:
    """What a process takes in addition to torch's allocations for training, with what the engine adds to the highest sum of both.

    It fills its share of the GPU with weights in bf16, the activations of a pass, and cache; one that sleeps while the model is
    trained has it only together with what is there between steps.
    """
    asked = job.training.objective and job.training.objective.generation
    if job.task != "train" or not asked or asked.engine != "vllm":
        return beside
    if card.memory_bytes is None:
        raise Contradiction("vllm takes a share of a GPU's memory: name a gpu, or an amount of memory", "hardware")
    if job.hardware.gpus * job.hardware.nodes % asked.tensor:
        gpus = job.hardware.gpus * job.hardware.nodes
        raise Contradiction(f"{gpus} GPUs are no whole number of groups of {asked.tensor}", f"{WHERE}.tensor")
    share, weights = int(card.memory_bytes * asked.gpu_memory_utilization), -(-count(spec) * bfloat16.itemsize // asked.tensor)
    token = -(-(spec.cached_per_token or 0) * bfloat16.itemsize // asked.tensor)
    least = weights + token * job.training.sequence_length
    if least > share:
        raise Contradiction(
            f"{gib(share)} hold neither vLLM's weights, {gib(weights)}, nor the cache of a sequence beside them: write a share "
            f"of more than {least / card.memory_bytes:.2f}",
            f"{WHERE}.gpu_memory_utilization",
        )
    added = share
    if asked.sleep:
        between = next(phase.start_bytes for phase in simulated.phases if phase.name != "load")
        added = max(0, between + share - simulated.peak.peak_bytes)
    parts = {**beside.parts, "vllm_engine": added}
    return replace(beside, parts=parts, low_bytes=beside.low_bytes + added, high_bytes=beside.high_bytes + added)
