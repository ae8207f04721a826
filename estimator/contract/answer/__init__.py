"""The answer to a job, as Python, the command line and REST give it. Bytes are integers; money is decimal text.

Each part is imported when it is first used: a question loads no more of an answer than it gives.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimator.contract.answer.cost import Cost, Energy
    from estimator.contract.answer.memory import Device, EngineMemory, HostMemory, KvCache, Memory, Peak, Place, Tensors
    from estimator.contract.answer.part import AnswerPart, Versions, WholeAnswer
    from estimator.contract.answer.ranks import Rank, Recomputation, Traffic
    from estimator.contract.answer.time import Course, ServingTime, Time, TimePart, TokenCost
    from estimator.contract.answer.whole import Answer, Note, Parameters

__all__ = [
    "DEFAULT",
    "Answer",
    "AnswerPart",
    "Cost",
    "Course",
    "Device",
    "Energy",
    "EngineMemory",
    "HostMemory",
    "KvCache",
    "Memory",
    "Note",
    "Parameters",
    "Peak",
    "Place",
    "Rank",
    "Recomputation",
    "ServingTime",
    "Tensors",
    "Time",
    "TimePart",
    "TokenCost",
    "Traffic",
    "Versions",
    "WholeAnswer",
]

DEFAULT = "default: "
"""What an assumption begins with that says which default a field has."""
_PARTS = {
    "cost": ("Cost", "Energy"),
    "memory": ("Device", "EngineMemory", "HostMemory", "KvCache", "Memory", "Peak", "Place", "Tensors"),
    "part": ("AnswerPart", "Versions", "WholeAnswer"),
    "ranks": ("Rank", "Recomputation", "Traffic"),
    "time": ("Course", "ServingTime", "Time", "TimePart", "TokenCost"),
    "whole": ("Answer", "Note", "Parameters"),
}


def __getattr__(name: str) -> Any:
    for part, names in _PARTS.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{part}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
