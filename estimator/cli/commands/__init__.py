"""The commands: what each takes, and what it does."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from estimator.cli.commands import answers, files, known, measured, models, plan, search, service, wrap

if TYPE_CHECKING:
    from estimator.cli.options import Commands


class Command(NamedTuple):
    """`options` adds the command's parser; `run` does what it was told to, and gives the exit code."""

    options: Callable[[Commands], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS = {
    "estimate": Command(answers.estimate_options, answers.estimate),
    "max": Command(answers.max_options, answers.limit),
    "min": Command(answers.min_options, answers.limit),
    "what-if": Command(search.what_if_options, search.what_if),
    "sweep": Command(search.sweep_options, search.sweep),
    "which": Command(search.which_options, search.which),
    "plan": Command(plan.plan_options, plan.plan),
    "replicas": Command(search.replicas_options, search.replicas),
    "timeline": Command(measured.timeline_options, measured.timeline),
    "explain": Command(measured.explain_options, measured.explain),
    "bottleneck": Command(measured.bottleneck_options, measured.bottleneck),
    "calibrate": Command(measured.calibrate_options, measured.calibrate),
    "fix": Command(files.fix_options, files.fix),
    "diff": Command(files.diff_options, files.diff),
    "check": Command(files.check_options, files.check),
    "budget": Command(answers.budget_options, answers.budget),
    "verify": Command(answers.verify_options, answers.verify),
    "models": Command(models.models_options, models.models),
    "gpus": Command(known.gpus_options, known.gpus),
    "nodes": Command(known.nodes_options, known.nodes),
    "prices": Command(known.prices_options, known.prices),
    "ask": Command(files.ask_options, files.ask),
    "export": Command(files.export_options, files.export),
    "import": Command(files.import_options, files.import_),
    "schema": Command(known.schema_options, known.schema),
    "wrap": Command(wrap.wrap_options, wrap.wrap),
    "serve": Command(service.serve_options, service.serve),
    "mcp": Command(service.mcp_options, service.mcp),
    "bundle": Command(service.bundle_options, service.bundle),
}
"""Every command by its name, in the order in which they are listed."""
