"""A job as a run on a tape, by whatever it runs in: transformers and torchtitan, Megatron-Core, or an engine that serves."""

from __future__ import annotations

from estimator.contract.job import Job
from estimator.families.build import Builder
from estimator.families.spec import ModelSpec
from estimator.parallel.topology import Topology
from estimator.serving.engines import trace_serving
from estimator.serving.llamacpp.placement import WeightTensor
from estimator.tape.gpu import AMPERE, Gpu
from estimator.training.plan import trace_training


def trace(
    job: Job,
    spec: ModelSpec,
    place: Topology,
    gpu: Gpu = AMPERE,
    tensors: tuple[WeightTensor, ...] | None = None,
    unrolled: bool = False,
) -> Builder:
    """A job with its defaults on a new tape; the builder has the tape and the parameters.

    `tensors`: those of a GGUF file that llama.cpp serves. `unrolled`: each layer of a model that trains by itself.
    Raises `InvalidJob` and `NotModelled` for what the model or the framework does not have.
    """
    if job.task == "train":
        if job.training.implementation != "megatron":
            return trace_training(job, spec, place, gpu, unrolled)
        from estimator.megatron.plan import trace_megatron

        return trace_megatron(job, spec, place, gpu, unrolled)
    return trace_serving(job, spec, place, gpu, tensors)
