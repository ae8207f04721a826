"""What a step's time went to, as a profile says: a trace of torch's profiler, nvidia-smi dmon, iostat, a loop's own timings."""

from __future__ import annotations

from dataclasses import dataclass, field

COMPUTE, MEMORY, EXCHANGE, COPIES, HOST, DATA = "compute", "memory", "exchange", "copies", "host", "data"
BOUNDS = {
    COMPUTE: "products and attention",
    MEMORY: "kernels that wait for the GPU's memory",
    EXCHANGE: "exchanges between GPUs that nothing hides",
    COPIES: "copies between GPU and host",
    HOST: "the host, which launches kernels",
    DATA: "the data loader",
}
"""What a step may be bound by."""


@dataclass(frozen=True, slots=True)
class Profile:
    """`shares`: of the time by bound, where the record has them apart; they sum to 1. `figures`: what else it says, by name.
    `seconds`: of a step, where it has steps. `bound`: what it points to where it has no shares."""

    kind: str
    shares: dict[str, float] = field(default_factory=dict)
    seconds: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    bound: str | None = None
