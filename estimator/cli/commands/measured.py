"""Commands about the course of a step, and about what was measured of one."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from estimator.cli import inputs
from estimator.cli.options import takes_any_job, takes_specs, whole
from estimator.contract.errors import InvalidJob

if TYPE_CHECKING:
    from pathlib import Path

    from estimator.cli.options import Commands


def timeline_options(commands: Commands) -> None:
    one = commands.add_parser(
        "timeline",
        help="live bytes over a step, tensor by tensor",
        description="Show what is alive in the course of a step, of the rank that needs most, and write it as a picture, as a "
        "trace or as a memory snapshot of torch.",
    )
    takes_any_job(one)
    one.add_argument("--svg", metavar="FILE", help="write it as a picture: stacked areas, a colour for each component")
    one.add_argument("--chrome", metavar="FILE", help="write it as a trace for ui.perfetto.dev or chrome://tracing")
    one.add_argument("--snapshot", metavar="FILE", help="write it as a memory snapshot, for pytorch.org/memory_viz")
    one.add_argument("--tensors", metavar="N", type=whole, default=1000, help="in JSON, list so many tensors, the largest (1000)")
    one.add_argument("--json", action="store_true", help="print it as REST would send it")
    takes_specs(one)


def timeline(options: argparse.Namespace) -> int:
    from estimator.cli.report_timeline import timeline_text
    from estimator.timelines.timeline import record, timeline_of

    step = record(inputs.any_job(options), options.on)
    found = timeline_of(step, options.tensors)
    written = []
    if options.svg:
        from estimator.timelines.picture import svg

        written.append(inputs.write(options.svg, svg(found).encode()))
    if options.chrome:
        from estimator.timelines.chrome import chrome

        written.append(inputs.write(options.chrome, chrome(step).encode()))
    if options.snapshot:
        from estimator.timelines.snapshot import snapshot

        written.append(inputs.write(options.snapshot, snapshot(step)))
    inputs.printed(options, found, timeline_text)
    for path in written:
        print(f"willitfit: written: {path}", file=sys.stderr)
    return 0


def _beside_job(options: argparse.Namespace, name: str, what: str) -> bytes | Path:
    """The file of an option beside the job, or what standard input holds, one byte more than may be read at most."""
    from pathlib import Path

    from estimator.measured.pickled import MOST_BYTES

    given = getattr(options, name)
    if options.job == "-" and given == "-":
        raise InvalidJob(f"only one of job and {what} can come from standard input", f"--{name}")
    return sys.stdin.buffer.read(MOST_BYTES + 1) if given == "-" else Path(given)


def explain_options(commands: Commands) -> None:
    one = commands.add_parser(
        "explain",
        help="what was measured beside what is predicted",
        description="Line up measured memory with a job's: an out-of-memory message, torch's memory summary or snapshot (of "
        "which nothing is run), nvidia-smi's samples, a trainer's or an engine's log; and say what would explain the difference.",
    )
    takes_any_job(one)
    one.add_argument("--measured", metavar="FILE", required=True, help="the record; - reads standard input")
    one.add_argument("--json", action="store_true", help="print it as REST would send it")
    one.add_argument("--check", action="store_true", help="exit with 1 if the record is not explained")
    takes_specs(one)


def explain(options: argparse.Namespace) -> int:
    from estimator.cli.report_explain import explanation_text
    from estimator.measured.explain import explain

    measured = _beside_job(options, "measured", "record")
    found = explain(inputs.any_job(options), measured, on=options.on)
    inputs.printed(options, found, explanation_text)
    return 1 if options.check and found.verdict == "not explained" else 0


def calibrate_options(commands: Commands) -> None:
    one = commands.add_parser(
        "calibrate",
        help="constants of one's own machine, from records of its runs",
        description="Fit the seconds of kernels and exchanges and the CUDA context to records that `watch` wrote, try each "
        "constant on models that it was not fitted to, and print the part of a job that uses those that are borne out.",
    )
    one.add_argument("records", metavar="RECORDS", help="a file of records, a line of JSON each; - reads standard input")
    one.add_argument("--out", metavar="FILE", help="write the part of a job to a file, in YAML")
    one.add_argument("--json", action="store_true", help="print it as REST would send it")
    one.add_argument("--check", action="store_true", help="exit with 1 if no constant is kept")
    takes_specs(one)


def calibrate(options: argparse.Namespace) -> int:
    from pathlib import Path

    from estimator.cli.report_calibrate import calibration_text, part
    from estimator.measured.calibrate import calibrate

    found = calibrate(sys.stdin.read() if options.records == "-" else Path(options.records))
    inputs.printed(options, found, calibration_text)
    if options.out and found.calibration is not None:
        print(f"willitfit: written: {inputs.write(options.out, part(found).encode())}", file=sys.stderr)
    return 1 if options.check and found.calibration is None else 0


def bottleneck_options(commands: Commands) -> None:
    one = commands.add_parser(
        "bottleneck",
        help="what bounds a step that was profiled, and what makes it faster",
        description="Say where the time of a step went, by a trace of torch's profiler, nvidia-smi dmon, iostat -x or a loop's "
        "own timings, beside what is predicted, and what helps, the most first.",
    )
    takes_any_job(one)
    one.add_argument("--profile", metavar="FILE", required=True, help="the profile; - reads standard input")
    one.add_argument("--json", action="store_true", help="print it as REST would send it")
    takes_specs(one)


def bottleneck(options: argparse.Namespace) -> int:
    from estimator.cli.report_bottleneck import bottleneck_text
    from estimator.measured.bottleneck import bottleneck

    profile = _beside_job(options, "profile", "profile")
    found = bottleneck(inputs.any_job(options), profile, on=options.on)
    inputs.printed(options, found, bottleneck_text)
    return 0
