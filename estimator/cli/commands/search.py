"""Commands that ask many jobs: with other values, on all hardware."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from estimator.cli import inputs
from estimator.cli.options import (
    MODEL_HELP,
    RUN_HELP,
    TASKS,
    takes_any_job,
    takes_check,
    takes_lengths,
    takes_prices,
    takes_specs,
    tokens,
    whole,
)
from estimator.contract.errors import InvalidJob

if TYPE_CHECKING:
    from estimator.cli.options import Commands


def what_if_options(commands: Commands) -> None:
    one = commands.add_parser(
        "what-if",
        help="a job with every combination of other values of its fields",
        description="Estimate a job with every combination of some values of some of its fields. Values are lists (ddp,fsdp2), "
        "ranges that double (1k..128k) or go in steps (8..64:8); of whole numbers k is 1024, of tokens in all 1000. hardware "
        "takes phrases such as 2x24GB. An interrupt (Ctrl-C) ends it and prints what was done.",
    )
    takes_any_job(one)
    one.add_argument(
        "changes", metavar="FIELD=VALUES", nargs="+", help="training.sequence_length=1k..128k parallelism.strategy=ddp,fsdp2"
    )
    one.add_argument("--plot", metavar="FILE.svg", help="draw it, as SVG")
    shown = one.add_mutually_exclusive_group()
    shown.add_argument("--csv", action="store_true", help="print the rows as CSV")
    shown.add_argument("--json", action="store_true", help="print the answer as REST would send it")
    takes_specs(one)


def what_if(options: argparse.Namespace) -> int:
    from estimator.cli.progress import Progress
    from estimator.cli.report_what_if import what_if_text
    from estimator.planner.what_if import read_changes, what_if

    if options.plot and not options.plot.lower().endswith(".svg"):
        raise InvalidJob("is drawn as SVG: write a name that ends in .svg", "--plot")
    found = what_if(inputs.any_job(options), read_changes(options.changes), on=options.on, watch=Progress("combinations"))
    if options.plot:
        from estimator.views.picture import picture

        inputs.write(options.plot, picture(found).encode())
    if options.csv:
        sys.stdout.write(found.to_csv())
    else:
        inputs.printed(options, found, what_if_text)
    return 0 if found.complete else inputs.INTERRUPTED


def sweep_options(commands: Commands) -> None:
    one = commands.add_parser(
        "sweep",
        help="what a job takes with a million combinations of values, and which fit",
        description="What a job takes of a GPU with every combination of some values of some of its fields, to the byte as "
        "estimate says it, a million in about a second where whole numbers of training or serving vary. Values are written as "
        "for what-if: lists (1,2,4), ranges that double (1k..128k) or go in steps (8..64:8). Time and cost are what-if's.",
    )
    takes_any_job(one)
    one.add_argument(
        "changes", metavar="FIELD=VALUES", nargs="+", help="training.sequence_length=1k..128k training.micro_batch_size=1..64:1"
    )
    one.add_argument(
        "--reserves", action="store_true", help="simulate the caching allocator where it decides, each as slow as an estimate"
    )
    one.add_argument("--processes", metavar="N", type=whole, default=1, help="worker processes for what takes long (1)")
    shown = one.add_mutually_exclusive_group()
    shown.add_argument("--csv", action="store_true", help="print the rows as CSV")
    shown.add_argument("--json", action="store_true", help="print the answer as REST would send it")
    one.add_argument("--arrow", metavar="FILE", help="write the rows as an Arrow file, with pyarrow")
    takes_specs(one)


def sweep(options: argparse.Namespace) -> int:
    from estimator.cli.report_sweep import sweep_text
    from estimator.planner.swept import swept
    from estimator.planner.what_if import read_changes
    from estimator.sweeps.executors import sharing

    with sharing(options.processes) as executor:
        job, changes = inputs.any_job(options), read_changes(options.changes)
        found = swept(job, changes, on=options.on, reserves=options.reserves, executor=executor)
    if options.arrow:
        found.write_arrow(options.arrow)
    if options.csv:
        sys.stdout.write(found.to_csv())
    else:
        inputs.printed(options, found, sweep_text)
    return 0


def which_options(commands: Commands) -> None:
    one = commands.add_parser(
        "which",
        help="which hardware does it: the smallest, the cheapest, and why less does not",
        description="Try every card that is known, from one of it to many, and list how few of each use a model in a usual way, "
        "or hold a job, the smallest first. An interrupt (Ctrl-C) ends the search and prints what was found.",
    )
    one.add_argument(
        "asked", metavar="MODEL|JOB", help=f"{MODEL_HELP}; or a job, or a file of a framework, whose own hardware is ignored"
    )
    one.add_argument("--task", metavar="TASK", help=f"what a model is used for: {', '.join(TASKS)} (serve)")
    one.add_argument("--within", metavar="TIME", help="the longest that a run may take: 24h, 3d, 90min")
    one.add_argument(
        "--under", metavar="MONEY", help="the most it may cost: '$50' or '50 EUR' for the whole run, '$2/h' for an hour"
    )
    one.add_argument("--tokens", metavar="COUNT", help=RUN_HELP)
    one.add_argument("--memory", metavar="AMOUNT", help="only cards sold with so much: 24GB, 24GB..80GB, ..48GB, 80GB..")
    takes_lengths(one)
    one.add_argument("--max-gpus", metavar="N", type=whole, default=64, help="the most GPUs (64)")
    one.add_argument("--top", metavar="N", type=whole, default=20, help="how many rows (20)")
    takes_check(one, "exit with 1 if no hardware does it")
    takes_prices(one)


def which(options: argparse.Namespace) -> int:
    from estimator.cli.progress import Progress
    from estimator.cli.report_which import which_text
    from estimator.planner.which import which

    asked = ("task", "within", "under", "memory", "context", "concurrency", "sequence", "batch", "tokens", "max_gpus", "top")
    given = {name: getattr(options, name) for name in asked}
    found = which(options.asked, **given, today=inputs.today(), watch=Progress("cards and numbers of them"))
    inputs.printed(options, found, which_text)
    if not found.complete:
        return inputs.INTERRUPTED
    return 1 if options.check and not found.possible else 0


def replicas_options(commands: Commands) -> None:
    one = commands.add_parser(
        "replicas",
        help="how many copies of a served model so many requests a second need, and where they cost least",
        description="Find, for every card that can be rented or for the hardware at hand, how many copies of a served model bear "
        "a load within limits of the first token and of those after it, the cheapest first.",
    )
    one.add_argument("asked", metavar="MODEL|JOB", help=f"{MODEL_HELP}; or a job that serves, or an engine's command")
    one.add_argument("--requests", metavar="N", required=True, help="requests per second: 10, 0.5, 600/min")
    one.add_argument("--prompt", metavar="TOKENS", type=tokens, help="tokens of a prompt (1024, or the job's)")
    one.add_argument("--output", metavar="TOKENS", type=tokens, help="tokens of an answer (256, or the job's)")
    one.add_argument("--ttft", metavar="TIME", help="the longest mean time to the first token: 500ms, 2s")
    one.add_argument("--tpot", metavar="TIME", help="the longest time per output token after it: 30ms")
    one.add_argument("--on", metavar="HARDWARE", help="no more GPUs than these, in place of every card: 8xH100")
    one.add_argument("--top", metavar="N", type=whole, default=20, help="how many rows (20)")
    takes_check(one, "exit with 1 if nothing bears it")
    takes_prices(one)


def replicas(options: argparse.Namespace) -> int:
    from estimator.cli.report_replicas import replicas_text
    from estimator.planner import amounts
    from estimator.planner.replicas import replicas

    limits = {
        name: None if (given := getattr(options, name)) is None else amounts.seconds(given, name) for name in ("ttft", "tpot")
    }
    found = replicas(
        options.asked,
        amounts.rate(options.requests),
        prompt=options.prompt,
        output=options.output,
        ttft=limits["ttft"],
        tpot=limits["tpot"],
        on=options.on,
        top=options.top,
        today=inputs.today(),
    )
    inputs.printed(options, found, replicas_text)
    return 1 if options.check and not found.possible else 0
