"""willitfit: does it fit, why, what would make it fit, how long does it take, what does it cost.

from estimator import estimate, fit

estimate({"model": "llama-2-13b", "hardware": {"gpu": "a100-80gb"}}).fits
fit("llama-2-13b", "2x24GB").rows
limit({"model": "llama-2-13b", "training": {"adapter": {}}}, "training.sequence_length", "max", on="2x24GB").value
sweep({"model": "llama-3-8b"}, {"training.sequence_length": [2048, 4096, 8192]}).peak_bytes
what_if("job.yaml", {"training.sequence_length": "1k..128k"}).rows
which("llama-3-8b", "qlora").smallest
plan("job.yaml", on="8xH100").rows
replicas("llama-3.1-8b", 10, prompt=1000, output=200, ttft=0.5, tpot=0.03, on="8xH100").cheapest
fitting(here().hardware).rows
read_file("train.yaml", on="2x24GB").job
timeline("train.yaml", on="2x24GB").peak
explain("train.yaml", Path("error.txt"), on="2x24GB").text
bottleneck("train.yaml", Path("trace.json")).remedies
calibrate(Path("runs.jsonl")).calibration
fix_file("train.yaml", on="2x24GB").fixes[0].patch
check_files(["train.yaml", "serve.sh"], on="2x24GB").fits
diff_files("before.yaml", "after.yaml", on="2x24GB").memory
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from estimator.contract import version

if TYPE_CHECKING:
    from estimator.contract.answer import Answer
    from estimator.contract.errors import InvalidJob, NotModelled, UnknownName, UnsupportedInterpreter, WillItFitError
    from estimator.contract.job import Job
    from estimator.exchange.documents import read_file
    from estimator.hardware.here import here
    from estimator.measured.bottleneck import bottleneck
    from estimator.measured.calibrate import calibrate
    from estimator.measured.explain import explain
    from estimator.pipeline.estimation import estimate
    from estimator.planner.answers import Differences, Fixes, Limit
    from estimator.planner.check import Checked, check_files
    from estimator.planner.diff import diff_files
    from estimator.planner.fix import fix_file
    from estimator.planner.headline import fit
    from estimator.planner.headline_answer import Fit
    from estimator.planner.limits import limit
    from estimator.planner.plan import plan
    from estimator.planner.plan_answer import Plan
    from estimator.planner.replicas import replicas
    from estimator.planner.replicas_answer import Replicas
    from estimator.planner.what_if import what_if
    from estimator.planner.what_if_answer import WhatIf
    from estimator.planner.which import which
    from estimator.planner.which_answer import Which
    from estimator.specs.module import architecture_of, count_module
    from estimator.sweeps.arrays import Sweep
    from estimator.sweeps.sweep import sweep
    from estimator.timelines.timeline import timeline
    from estimator.views.fitting import fitting
    from estimator.views.inspection import inspect_model
    from estimator.watching.watch import watch

__version__ = version.SOFTWARE_VERSION

_EXPORTS = {
    "Answer": "contract.answer",
    "Checked": "planner.check",
    "Differences": "planner.answers",
    "Fit": "planner.headline_answer",
    "Fixes": "planner.answers",
    "InvalidJob": "contract.errors",
    "Job": "contract.job",
    "Limit": "planner.answers",
    "NotModelled": "contract.errors",
    "Plan": "planner.plan_answer",
    "Replicas": "planner.replicas_answer",
    "Sweep": "sweeps.arrays",
    "UnknownName": "contract.errors",
    "UnsupportedInterpreter": "contract.errors",
    "WhatIf": "planner.what_if_answer",
    "Which": "planner.which_answer",
    "WillItFitError": "contract.errors",
    "architecture_of": "specs.module",
    "bottleneck": "measured.bottleneck",
    "calibrate": "measured.calibrate",
    "check_files": "planner.check",
    "count_module": "specs.module",
    "diff_files": "planner.diff",
    "estimate": "pipeline.estimation",
    "explain": "measured.explain",
    "fit": "planner.headline",
    "fitting": "views.fitting",
    "here": "hardware.here",
    "fix_file": "planner.fix",
    "inspect_model": "views.inspection",
    "limit": "planner.limits",
    "plan": "planner.plan",
    "read_file": "exchange.documents",
    "replicas": "planner.replicas",
    "sweep": "sweeps.sweep",
    "what_if": "planner.what_if",
    "which": "planner.which",
    "timeline": "timelines.timeline",
    "watch": "watching.watch",
}

__all__ = [
    "Answer",
    "Checked",
    "Differences",
    "Fit",
    "Fixes",
    "InvalidJob",
    "Job",
    "Limit",
    "NotModelled",
    "Plan",
    "Replicas",
    "Sweep",
    "UnknownName",
    "UnsupportedInterpreter",
    "WhatIf",
    "Which",
    "WillItFitError",
    "__version__",
    "architecture_of",
    "bottleneck",
    "calibrate",
    "check_files",
    "count_module",
    "diff_files",
    "estimate",
    "explain",
    "fit",
    "fitting",
    "here",
    "fix_file",
    "inspect_model",
    "limit",
    "plan",
    "read_file",
    "replicas",
    "sweep",
    "what_if",
    "which",
    "timeline",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that the command line starts fast."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    """All that is public, imported or not: what an editor or a notebook completes."""
    return sorted({*globals(), *__all__})
