"""willitfit: does it fit, why, what would make it fit, how long does it take, what does it cost.

from estimator import estimate, fit

estimate({"model": "llama-2-13b", "hardware": {"gpu": "a100-80gb"}}).fits
fit("llama-2-13b", "2x24GB").rows
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from estimator import version

if TYPE_CHECKING:
    from estimator.answer import Answer
    from estimator.errors import InvalidJob, NotModelled, UnknownName, UnsupportedInterpreter, WillItFitError
    from estimator.estimation import estimate
    from estimator.inspection import inspect_model
    from estimator.job import Job
    from estimator.planner.answers import Fit
    from estimator.planner.headline import fit
    from estimator.specs.module import architecture_of, count_module

__version__ = version.SOFTWARE_VERSION

_EXPORTS = {
    "Answer": "answer",
    "Fit": "planner.answers",
    "InvalidJob": "errors",
    "Job": "job",
    "NotModelled": "errors",
    "UnknownName": "errors",
    "UnsupportedInterpreter": "errors",
    "WillItFitError": "errors",
    "architecture_of": "specs.module",
    "count_module": "specs.module",
    "estimate": "estimation",
    "fit": "planner.headline",
    "inspect_model": "inspection",
}

__all__ = [
    "Answer",
    "Fit",
    "InvalidJob",
    "Job",
    "NotModelled",
    "UnknownName",
    "UnsupportedInterpreter",
    "WillItFitError",
    "__version__",
    "architecture_of",
    "count_module",
    "estimate",
    "fit",
    "inspect_model",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that the command line starts fast."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
