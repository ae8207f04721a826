"""Commands that answer a job: in full, with its largest number, by what it costs, beside torch."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from estimator.cli import inputs
from estimator.cli.options import hours, money, takes_any_job, takes_check, takes_job, takes_prices, takes_specs, tokens, whole
from estimator.contract.errors import InvalidJob

if TYPE_CHECKING:
    from estimator.cli.options import Commands
    from estimator.contract.job import Job

CLOSE = 0.005
"""Relative error up to which `verify --check` is content."""


def estimate_options(commands: Commands) -> None:
    one = commands.add_parser("estimate", help="answer one job in full", description="Answer one job in full.")
    takes_any_job(one)
    one.add_argument("--json", action="store_true", help="print the answer as REST would send it")
    one.add_argument("--explain", action="store_true", help="name the tensors that are alive at the peak")
    one.add_argument(
        "--defaults", action="store_true", help="list every default that was used, also those that are off, none, 0 or 1"
    )
    one.add_argument("--ranks", action="store_true", help="list every stage of a pipeline, and what ranks exchange")
    one.add_argument("--check", action="store_true", help="exit with 1 if the job does not fit")
    takes_specs(one)
    takes_prices(one)


def _job(options: argparse.Namespace) -> Job:
    """A job file as it is, for which what reads frameworks' files is not loaded; else any other, or a model with its task."""
    if options.task is None and options.on is None and (options.job == "-" or os.path.exists(options.job)):
        try:
            return inputs.job(options.job)
        except InvalidJob:
            from estimator.exchange.documents import is_of_framework

            if options.job == "-" or not is_of_framework(Path(options.job)):
                raise
    from estimator.exchange.documents import job_of

    return job_of(inputs.any_job(options), options.on)


def estimate(options: argparse.Namespace) -> int:
    from estimator.pipeline.estimation import estimate

    answer = estimate(_job(options), every_rank=options.ranks, today=inputs.today())
    if options.json:
        sys.stdout.write(answer.to_json())
    else:
        from estimator.cli.report import answer_text

        sys.stdout.write(answer_text(answer, options.explain, options.ranks, options.defaults))
    return 1 if options.check and answer.fits is False else 0


def max_options(commands: Commands) -> None:
    _limit_options(commands, "max", "largest", "training.sequence_length, serving.concurrency")


def min_options(commands: Commands) -> None:
    _limit_options(commands, "min", "smallest", "hardware.gpus, serving.n_cpu_moe")


def _limit_options(commands: Commands, name: str, what: str, such_as: str) -> None:
    one = commands.add_parser(
        name,
        help=f"the {what} value of a number in a job with which it fits",
        description=f"Find the {what} value of a whole number in a job with which it fits, and what is in the way of the next.",
    )
    takes_any_job(one)
    one.add_argument("field", metavar="FIELD", help=f"the number's dotted name: {such_as}, …")
    one.add_argument(
        "--context", metavar="TOKENS", type=tokens, help="of JOB, a model that is served: tokens of a sequence (4096)"
    )
    one.add_argument(
        "--sequence", metavar="TOKENS", type=tokens, help="of JOB, a model that is trained: tokens of a sequence (2048)"
    )
    one.add_argument(
        "--tries", metavar="N", type=whole, default=8, help="how many values to estimate in full where the allocator decides (8)"
    )
    takes_check(one, "exit with 1 if it fits with no value")


def limit(options: argparse.Namespace) -> int:
    from estimator.cli.report_limit import limit_text
    from estimator.planner.limits import limit

    found = limit(inputs.any_job(options), options.field, options.command, on=options.on, tries=options.tries)
    inputs.printed(options, found, limit_text)
    return 1 if options.check and found.fits is False else 0


def budget_options(commands: Commands) -> None:
    rented = commands.add_parser(
        "budget",
        help="every way to rent what a job needs",
        description="Rank the offers that hold a training job by what its run costs; training.tokens says how much that is.",
    )
    takes_job(rented)
    rented.add_argument("--max-cost", metavar="MONEY", type=money, help="the most that the run may cost, in the offers' currency")
    rented.add_argument("--max-hours", metavar="HOURS", type=hours, help="the most hours that the run may take")
    rented.add_argument("--max-gpus", metavar="N", type=whole, default=64, help="the most GPUs (64)")
    rented.add_argument("--gpu", metavar="NAME", help="only on this accelerator")
    for name, what in (
        ("provider", "of this provider"),
        ("region", "in this region"),
        ("kind", "paid for so: spot, reserved-1y"),
    ):
        rented.add_argument(f"--{name}", metavar=name.upper(), help=f"only offers {what}")
    rented.add_argument("--top", metavar="N", type=whole, default=20, help="how many rows (20)")
    rented.add_argument("--json", action="store_true", help="print the rows as JSON, each with its job")
    rented.add_argument("--check", action="store_true", help="exit with 1 if it cannot be done within the limits")
    takes_specs(rented)
    takes_prices(rented)


def budget(options: argparse.Namespace) -> int:
    from estimator.cli.report_budget import budget_text
    from estimator.planner.budget import Limits, budget, narrowed

    asked = {name: value for name in ("gpu", "provider", "region", "kind") if (value := getattr(options, name))}
    limits = Limits(options.max_cost, options.max_hours, options.max_gpus)
    found = budget(narrowed(inputs.job(options.job), asked), limits, inputs.today(), options.top)
    inputs.printed(options, found, budget_text)
    return 1 if options.check and not found.possible else 0


def verify_options(commands: Commands) -> None:
    judged = commands.add_parser(
        "verify",
        help="let torch judge one job's answer",
        description="Play a training job's real model on fake tensors, and print what torch counts beside what was predicted.",
    )
    takes_job(judged)
    judged.add_argument("--json", action="store_true", help="print both counts as JSON")
    judged.add_argument("--check", action="store_true", help="exit with 1 if the two counts are more than 0.5 %% apart")
    takes_specs(judged)


def verify(options: argparse.Namespace) -> int:
    try:
        from estimator.verify.compare import comparison_text, verify
    except ImportError as error:
        print(f"willitfit: verify needs {error.name}; install it with: pip install 'willitfit[torch]'", file=sys.stderr)
        return 2
    found = verify(inputs.job(options.job))
    if options.json:
        from estimator.contract.rows import Counted

        sys.stdout.write(Counted(predicted=found.predicted, counted=found.counted).to_json())
    else:
        sys.stdout.write(comparison_text(found))
    return 1 if options.check and found.error > CLOSE else 0
