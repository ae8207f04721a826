"""What of a GPU a run depends on, and what a run has read of it."""

from __future__ import annotations

from dataclasses import dataclass, field

Capability = tuple[int, int]
"""NVIDIA's compute capability."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """What torch's choice of kernels depends on: the compute capability, and whether torch prefers cuDNN's attention.

    What a run asks of it is written to `asked`, with the answers: a GPU that answers alike has the same tape.
    """

    exact: Capability = (8, 0)
    prefers_cudnn: bool = False
    asked: dict[Capability | None, Capability | bool] = field(default_factory=dict, compare=False, repr=False)
    """The run's questions and their answers: whether the GPU has a compute capability or a later one; under None, which it
    has."""

    def at_least(self, capability: Capability) -> bool:
        """Whether the GPU has this compute capability, or a later one."""
        self.asked[capability] = self.exact >= capability
        return self.exact >= capability

    @property
    def capability(self) -> Capability:
        """The GPU's compute capability, for what `at_least` does not tell."""
        self.asked[None] = self.exact
        return self.exact

    def alike(self, other: Gpu) -> bool:
        """Whether all that was asked of the other would have the same answers here."""
        known = other.asked.items()
        return self.prefers_cudnn == other.prefers_cudnn and all(
            answer == (self.exact if at is None else self.exact >= at) for at, answer in known
        )


AMPERE = Gpu()
