"""The timeline of a job, as Python, the command line and REST give it. Bytes are integers; times are numbers of events."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from estimator.contract.answer import AnswerPart, Place, Versions, WholeAnswer


class TimelinePhase(AnswerPart):
    """One occurrence of a phase: forward, backward, optimizer_step, …"""

    name: str
    start: int
    """The event with which it begins; it ends before event `stop`."""
    stop: int
    start_bytes: int
    peak_bytes: int
    end_bytes: int


class TimelinePeak(Place):
    """Where most is alive: the first of the events at which that is so."""

    event: int
    phase: str
    bytes: int
    components: dict[str, int]
    """What is alive there, by what it is; the values sum to `bytes`."""


class TimelinePoints(AnswerPart):
    """Live bytes after some of the events: of each stretch of events that after which most is alive, and the first and last."""

    events: list[int]
    """The first is -1: what is alive before the step."""
    names: list[str]
    """The tensor that each of `events` allocates or releases."""
    total: list[int]
    components: dict[str, list[int]]
    """For each component its bytes at each of `events`; at each event they sum to `total`."""


class StepTensor(AnswerPart):
    """A tensor of a step: what it is, and where it was allocated."""

    name: str
    """Where and what it is: "layers[3].mlp.down_proj.weight", "layers[3]: mm"."""
    component: str
    operation: str
    """The operation that made it, or a parameter's name."""
    part: str | None
    """The stack of layers in which it was made; null: outside all layers."""
    layer: int | None
    shape: list[int] | None
    dtype: str | None
    bytes: int
    """Rounded up to 512 as the allocator does."""
    phase: str
    """The phase in which it was allocated; "load" for what is alive before the step."""


class TimelineTensor(StepTensor):
    """A tensor from its allocation to its release."""

    born: int
    """The event that allocates it; 0 for what is alive before the step."""
    died: int | None
    """The event that releases it; null for what outlives the step."""
    recomputed: bool
    """Whether backward made it, running again what forward had run."""


class Timeline(WholeAnswer):
    """Live bytes of the rank that needs most, over one step in its steady state: each event allocates or releases one tensor."""

    phases: list[TimelinePhase]
    peak: TimelinePeak
    points: TimelinePoints
    tensors: list[TimelineTensor]
    """The largest; of those that are equally large the first."""
    tensors_left_out: int
    """How many smaller tensors are not listed."""
    events: int
    capacity_bytes: int | None
    """Bytes that a process can allocate on the GPU; null where no hardware was named."""
    overhead_bytes: int
    """What a process takes beside its tensors: the CUDA context, workspaces, communicators; without cached blocks."""
    job: dict[str, Any]
    """The job with every default filled in."""
    versions: Versions


class ChromeTrace(AnswerPart):
    """The timeline as Chrome's Trace Event Format: what chrome://tracing and Perfetto open."""

    trace_events: list[dict[str, Any]] = Field(alias="traceEvents")
    display_time_unit: str = Field(alias="displayTimeUnit")
    other_data: dict[str, str] = Field(alias="otherData")
