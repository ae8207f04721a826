"""The command that finds ways to run a job."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from estimator.cli import inputs
from estimator.cli.options import takes_any_job, takes_check, takes_prices, whole

if TYPE_CHECKING:
    from estimator.cli.options import Commands


def plan_options(commands: Commands) -> None:
    one = commands.add_parser(
        "plan",
        help="the best ways to train: strategy, degrees, recomputation, micro-batch, hardware",
        description="Try every way of running a training job: strategies, degrees of parallelism, recomputation, offloading, "
        "micro-batches and kernels, and where no hardware is given, or with --on any, cards and numbers of them that can be "
        "rented. The answer is "
        "those that none beats in money, time and memory left, with the reason why each neighbour is worse. An interrupt "
        "(Ctrl-C) ends the search and prints what was found.",
    )
    takes_any_job(one)
    one.add_argument("--within", metavar="TIME", help="the longest that the run may take: 24h, 3d, 90min")
    one.add_argument(
        "--under", metavar="MONEY", help="the most it may cost: '$50' or '50 EUR' for the whole run, '$2/h' for an hour"
    )
    one.add_argument(
        "--allow",
        metavar="FIELD[=VALUES]",
        action="append",
        default=[],
        help="a field that may change though it changes what is computed: training.precision, training.optimizer=adamw-8bit; "
        "of another field the only values that it may get (may be repeated)",
    )
    one.add_argument(
        "--deny",
        metavar="FIELD[=VALUES]",
        action="append",
        default=[],
        help="a field, a part of the job, or values that are left out: offload, parallelism.strategy=ddp (may be repeated)",
    )
    one.add_argument("--keep-global-batch", action="store_true", help="a step has exactly as many sequences as the job says")
    one.add_argument("--memory", metavar="AMOUNT", help="only cards sold with so much: 24GB, 24GB..80GB, ..48GB, 80GB..")
    one.add_argument("--max-gpus", metavar="N", type=whole, default=64, help="the most GPUs (64)")
    one.add_argument("--top", metavar="N", type=whole, default=12, help="how many ways are listed (12)")
    one.add_argument("--processes", metavar="N", type=whole, help="worker processes of a long search (one for each processor)")
    takes_check(one, "exit with 1 if there is no way")
    takes_prices(one)


def plan(options: argparse.Namespace) -> int:
    from estimator.cli.progress import Progress
    from estimator.cli.report_plan import plan_text
    from estimator.planner.plan import plan
    from estimator.sweeps.executors import sharing

    asked = ("on", "within", "under", "allow", "deny", "keep_global_batch", "memory", "max_gpus", "top")
    given = {name: getattr(options, name) for name in asked}
    with sharing(options.processes) as executor:
        watch = Progress("candidates").candidates
        found = plan(inputs.any_job(options), **given, today=inputs.today(), watch=watch, executor=executor)
    inputs.printed(options, found, plan_text)
    if not found.complete:
        return inputs.INTERRUPTED
    return 1 if options.check and not found.possible else 0
