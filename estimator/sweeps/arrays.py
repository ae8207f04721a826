"""Arrays of what `estimate` says of each point of a grid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

YES, NO, UNKNOWN = 1, 0, -1
"""Values of `fits`."""
BY_PROGRAM, ONE_BY_ONE, REFUSED = 0, 1, 2
"""Values of `how`."""
BYTES = ("peak_bytes", "resident_bytes", "least_bytes", "total_bytes")
NOT_SAID = -1
"""Bytes that are masked in the end."""


@dataclass(slots=True)
class Sweep:
    """Arrays with an axis for each of `fields`, in their order. Bytes are masked where a job is refused.

    `least_bytes`: the peak and what the process takes beside the tensors, without what the caching allocator keeps.
    `total_bytes`: with that, as `estimate` says it; masked where the allocator was not asked. `fits`: `YES`, `NO`, or `UNKNOWN`,
    where the allocator would decide and was not asked, or nothing is known of the hardware. `how`: `BY_PROGRAM`, `ONE_BY_ONE` or
    `REFUSED`. `refusals`: why, with the number of points. `programs`: how many were used.
    """

    fields: dict[str, tuple[Any, ...]]
    peak_bytes: Any
    resident_bytes: Any
    least_bytes: Any
    total_bytes: Any
    fits: Array
    how: Array
    refusals: dict[str, int] = field(default_factory=dict)
    programs: int = 0
