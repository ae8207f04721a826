"""What a question asks for, whoever answers it: the command line, or a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Details = dict[str, str]
Wanted = Literal["fit", "hardware", "models", "limit"]
"""Whether a model fits on some hardware, and how fast and how far; which hardware it needs; which models fit there; or how
large a number may be there, such as of users."""
USERS, BATCH = "serving.concurrency", "training.micro_batch_size"
"""Fields of a job of whose limits people ask."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question. `model` is empty where models are asked for, and `on`, its hardware, where hardware is. `details`: what was
    said beside, by the names of the headline's options (`context`, `concurrency`, `sequence`, `batch`, `task`, `tokens`,
    `engine`), as it was written. `limited`: the number of a job whose limit is asked for."""

    wants: Wanted
    model: str = ""
    on: str = ""
    details: Details = field(default_factory=dict)
    limited: str = ""
