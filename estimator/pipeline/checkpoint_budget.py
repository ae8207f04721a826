"""What a job recomputes, and what that costs against none: a budget solved, the best number of segments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from estimator.contract.answer import Recomputation
from estimator.contract.errors import InvalidJob, NotModelled
from estimator.contract.job import CheckpointForm, Job
from estimator.contract.units import gib
from estimator.families.spec import ModelSpec
from estimator.parallel.topology import Topology
from estimator.simulation.simulation import Simulation, simulate
from estimator.tape.gpu import Gpu
from estimator.tape.kernels import flops
from estimator.training.budget import Chosen, Mix, Played, activations, cheapest
from estimator.training.recomputation import FIELD, WAYS, checkpointing

KEEPS = {
    "full": "whole",
    "attention": "but for attention's results",
    "torchtitan": "but for the results of attention and every second product",
    "products": "but for the results of attention and all products",
}
"""Ways of recomputing a layer in words."""


def solved(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu) -> tuple[Job, list[str]]:
    """The job with what its budget comes to in place of it; and what to say of that."""
    asked = job.training.activation_checkpointing
    if job.task != "train" or not isinstance(asked, CheckpointForm) or asked.budget is None:
        return job, []
    if job.training.implementation == "torchtitan":
        raise NotModelled("torchtitan's budget is torch.compile's: write none, full, selective or {every: k}", FIELD)

    def possible(way: str) -> bool:
        try:
            simulate(_with(job, CheckpointForm.model_validate({"operations": way})), spec, place, gpu)
        except (InvalidJob, NotModelled):
            return False
        return True

    def simulated(mix: Mix) -> Played:
        return activations(simulate(_with(job, _form(mix, ways)), spec, place, gpu).build.tape)

    ways = ("full", *(way for way in WAYS[1:] if possible(way)))
    alike = simulate(_with(job, "none"), spec, place, gpu).build.alike
    chosen = cheapest(asked.budget, spec.depth, len(ways), alike, simulated)
    return _with(job, _form(chosen.mix, ways)), _said(asked.budget, chosen, ways, spec.depth)


def solution_given(given: Job, job: Job) -> Job:
    """The job's own setting, with what its budget came to in place of it: that is no default."""
    return _with(given, job.training.activation_checkpointing)


def _with(job: Job, how: object) -> Job:
    return job.model_copy(update={"training": job.training.model_copy(update={"activation_checkpointing": how})})


def _form(mix: Mix, ways: Sequence[str]) -> CheckpointForm | Literal["none"]:
    counts = {way: count for way, count in zip(ways, mix, strict=True) if count}
    if not counts:
        return "none"
    return CheckpointForm(layers=mix[0]) if len(counts) == 1 and mix[0] else CheckpointForm.model_validate({"mix": counts})


def _said(budget: int, chosen: Chosen, ways: Sequence[str], layers: int) -> list[str]:
    if chosen.played is chosen.without:
        return [f"activations take {gib(chosen.played.peak_bytes)} at most without recomputation: within the budget"]
    parts, start = [], 0
    for way, count in zip(ways, chosen.mix, strict=True):
        if count:
            parts.append(f"{_range(start, count)} {KEEPS[way]}")
        start += count
    return [
        f"recomputes {', '.join(parts)} (of {layers} layers): of all such choices within the budget of {gib(budget)} the one "
        f"that repeats least; activations take {gib(chosen.played.peak_bytes)} at most, {gib(chosen.without.peak_bytes)} without"
    ]


def _range(start: int, count: int) -> str:
    return f"layer {start}" if count == 1 else f"layers {start}-{start + count - 1}"


def best_segments(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu) -> list[str]:
    """Where the layers are recomputed in segments: which number of segments has the lowest peak, by simulating each."""
    asked = job.training.activation_checkpointing
    if job.task != "train" or not (asked == "sqrt" or (isinstance(asked, CheckpointForm) and asked.segments)):
        return []
    sizes = {math.ceil(spec.depth / count): count for count in range(spec.depth, 0, -1)}
    peaks = {
        count: simulate(_with(job, CheckpointForm(segments=count)), spec, place, gpu).phases.peak.peak_bytes
        for count in sizes.values()
    }
    best = min(peaks, key=lambda count: (peaks[count], -count))
    own = checkpointing(job.training, spec.depth).segment
    return [
        f"of all numbers of segments, {best} has the lowest peak: {gib(peaks[best])}; {sizes[own]} here: {gib(peaks[sizes[own]])}"
    ]


def recomputation(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu, made: Simulation) -> Recomputation | None:
    """What is run again in a step, and the bytes that this saves; None where nothing is."""
    if job.task != "train" or not made.build.recomputes:
        return None
    without = simulate(_with(job, "none"), spec, place, gpu)
    backward = flops(made.build.tape, "backward")
    done = flops(made.build.tape, "forward").total + backward.total
    return Recomputation(
        flops=backward.repeated * job.training.gradient_accumulation_steps,
        share=backward.repeated / (done - backward.repeated) if done > backward.repeated else 0.0,
        saved_bytes=without.phases.peak.peak_bytes - made.phases.peak.peak_bytes,
    )
