"""A job's model, simulated: its tape, the peak of each phase, and what the caching allocator reserves for it.

Of the GPU only its compute capability matters here, and of that what a run depends on; so simulations are remembered: the same
question comes again, of another card.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from estimator.contract.job import Job, Offload, Parallelism
from estimator.families.build import Builder
from estimator.families.other import OtherSpec
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.parallel.topology import Topology
from estimator.runtime.allocation import OutOfMemory
from estimator.runtime.reserved import Reserved, held_if_grown, reserved
from estimator.serving.engines import drafter_of
from estimator.serving.hearing import hears_apart, trace_hearing
from estimator.serving.kernels import trace_kernels
from estimator.serving.llamacpp.placement import WeightTensor
from estimator.serving.speed import trace_speed
from estimator.serving.texts import makes_vectors, trace_texts
from estimator.simulation.attribution import Attribution, attribution, somewhere
from estimator.simulation.counting import Counted, builder, counted
from estimator.simulation.trace import trace as trace
from estimator.tape.gpu import Gpu
from estimator.tape.lifetimes import undisturbed
from estimator.tape.replay import Replay, replay
from estimator.tape.tape import Tape

WITHOUT_BYTES = frozenset({"tokens", "dataset", "run", "hours", "prompt_length", "output_length"})
"""Settings on which no byte depends."""
UNTRACED = WITHOUT_BYTES | {"expandable_segments"}
"""Settings that no tape depends on: those, and how the allocator serves what is on it."""
KEPT = 64
"""How many questions are remembered with their simulations, the most recently used ones."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a run allocates and frees: the model's parts; and the phases, and where the peak is, read when they are asked for."""

    build: Builder
    counted: Counted | None = None
    """The count that it is made of, of a model that torch ran."""

    @cached_property
    def phases(self) -> Replay:
        """The phases of the GPU's memory."""
        return replay(self.build.tape)

    @cached_property
    def why(self) -> Attribution:
        """Where the peak is, and of what; of what torch counted no place in the model is known."""
        found = attribution(self.build.tape, self.phases)
        return found if self.counted is None else somewhere(found)

    @cached_property
    def host(self) -> Replay | None:
        """The phases of the host's memory; None where the job offloads nothing to it."""
        return None if self.build.tape.host is None else replay(self.build.tape.host)

    def reserved(self, workspace: int, expandable: bool, room: int | None = None) -> Reserved:
        """What the caching allocator takes. `workspace`: bytes that cuBLAS keeps per thread that multiplies; `room`: bytes that
        there are for it, where that is limited. Raises `OutOfMemory`."""
        return reserved(self.build.tape, workspace, expandable, room)

    def runs_in(self, room: int, workspace: int, expandable: bool) -> bool:
        """Whether the caching allocator gets by with so many bytes: of segments that grow, what is alive mostly says so."""
        if expandable:
            at_least, at_most = held_if_grown(self.build.tape, workspace)
            if room < at_least or at_most <= room:
                return at_most <= room
        try:
            self.reserved(workspace, expandable, room)
        except OutOfMemory:
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Question:
    """All that a simulation depends on besides the GPU, as text where it is no plain value."""

    spec_text: str
    part_text: str
    parallelism: Parallelism
    offload: Offload
    place: Topology
    tensors: tuple[WeightTensor, ...] | None
    in_ram: bool
    """Whether there is no GPU."""


def simulate(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu, tensors: tuple[WeightTensor, ...] | None = None) -> Simulation:
    """Simulate a job with its defaults; `tensors`: those of a GGUF file that llama.cpp serves.

    Raises `InvalidJob` and `NotModelled` for what the model or the framework does not have.
    """
    known = _simulations(_question(job, spec, place, tensors, UNTRACED))
    found = next((one for one in known if gpu.alike(one.build.tape.gpu)), None)
    if found is None and isinstance(spec, OtherSpec):
        found = _counted(job, spec, gpu)
        known.append(found)
    if found is None:
        build = undisturbed(lambda: trace(job, spec, place, replace(gpu, asked={}), tensors))
        found = Simulation(build)
        known.append(found)
    return found


def _counted(job: Job, spec: OtherSpec, gpu: Gpu) -> Simulation:
    """The step as torch counts it: where in the model its peak is, is not known of it."""
    gpu = replace(gpu, asked={})
    _ = gpu.capability  # which what it ran on may have been asked
    count = counted(job, spec, gpu)
    return Simulation(builder(count, gpu), count)


def speed(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu) -> Tape:
    """The kernels of a job with its defaults that serves: a prompt and a decoding step, or a pass over texts that are made
    vectors."""
    known = _tapes(_question(job, spec, place))
    found = next((one for one in known if gpu.alike(one.gpu)), None)
    if found is None:
        found = undisturbed(lambda: _traced(job, spec, place, replace(gpu, asked={})))
        known.append(found)
    return found


def _traced(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu) -> Tape:
    if makes_vectors(job, spec):
        return trace_texts(job, spec, place, gpu)
    if hears_apart(spec):
        return trace_hearing(job, spec, place, gpu)
    if isinstance(spec, DecoderSpec) and spec.cached and spec.runs and drafter_of(job, spec) is None:
        return trace_speed(job, spec, place, gpu)
    return trace_kernels(job, spec, place, gpu)


@lru_cache(maxsize=KEPT)
def _simulations(_: _Question) -> list[Simulation]:
    """Simulations of a question that are remembered, for GPUs on which it has different answers."""
    return []


@lru_cache(maxsize=KEPT)
def _tapes(_: _Question) -> list[Tape]:
    """Tapes of `speed` for a question that are remembered, for GPUs on which it has different answers."""
    return []


def _question(
    job: Job,
    spec: ModelSpec,
    place: Topology,
    tensors: tuple[WeightTensor, ...] | None = None,
    ignored: frozenset[str] = frozenset(),
) -> _Question:
    """`ignored`: settings that do not matter."""
    part = job.training if job.task == "train" else job.serving
    text = job.task + part.model_dump_json(exclude=set(ignored))
    return _Question(spec.model_dump_json(), text, job.parallelism, job.offload, place, tensors, job.hardware.without_gpu)
