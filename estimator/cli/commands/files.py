"""Commands about files of frameworks and of platforms: mend, compare, write, read."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from estimator.cli import inputs
from estimator.cli.options import (
    CHECKS,
    FORMATS,
    HARDWARE_HELP,
    MODEL_HELP,
    PLATFORMS,
    takes_check,
    takes_data,
    takes_file,
    takes_job,
    takes_release,
    takes_specs,
)
from estimator.contract.errors import Contradiction, InvalidJob
from estimator.contract.reading import parse_json, read_text

if TYPE_CHECKING:
    from estimator.cli.options import Commands


def fix_options(commands: Commands) -> None:
    mended = commands.add_parser(
        "fix",
        help="the smallest edits of a file that make it fit",
        description="Find the smallest edits of a framework's file, a command or a job with which it fits, in the file's own "
        "keys, and print them as a patch (patch -p0). Each fix was read and estimated again.",
    )
    takes_file(mended)
    mended.add_argument("--write", action="store_true", help="apply the first fix to the file")
    takes_check(mended, "exit with 1 if nothing makes it fit")


def fix(options: argparse.Namespace) -> int:
    from estimator.cli.report_fix import fixes_text
    from estimator.planner.fix import fix, fix_file

    if options.file == "-":
        if options.write:
            raise InvalidJob("standard input is no file to write to", "--write")
        found = fix(inputs.standard_input().encode(), options.on, options.model, options.given)
    else:
        found = fix_file(options.file, options.on, options.model, options.given, options.write)
    inputs.printed(options, found, fixes_text)
    if options.write and found.fixes and not options.json:
        print(f"willitfit: written to {options.file}", file=sys.stderr)
    return 1 if options.check and not found.fits and not found.fixes else 0


def diff_options(commands: Commands) -> None:
    two = commands.add_parser(
        "diff",
        help="what differs between two files or jobs",
        description="Compare two files of frameworks, commands or jobs: the settings that differ after defaults, with each "
        "default's reason, then memory at the peak by part, then the time of a step by part.",
    )
    two.add_argument("a", metavar="A", help="a job file, or a file of a framework, a command or a script (see import)")
    two.add_argument("b", metavar="B", help="another, or the same one")
    two.add_argument("--on", metavar="HARDWARE", help=f"what both are to run on, in place of what they say: {HARDWARE_HELP}")
    two.add_argument("--model", metavar="MODEL", help=f"the model, where a file names none: {MODEL_HELP}")
    takes_check(two, "exit with 1 if a setting differs")


def diff(options: argparse.Namespace) -> int:
    from estimator.cli.report_diff import differences_text
    from estimator.planner.diff import diff_files

    found = diff_files(options.a, options.b, options.on, options.model)
    inputs.printed(options, found, differences_text)
    return 1 if options.check and found.settings else 0


def check_options(commands: Commands) -> None:
    gate = commands.add_parser(
        "check",
        help="whether the jobs of several files fit, as a gate asks",
        description="Say of each file whether its job fits, and which edits would make it fit. Exits with 0 if all fit, 1 if one "
        "does not, 2 if of one it cannot be said. What is no file of a job is skipped.",
    )
    gate.add_argument("files", metavar="FILE", nargs="*", help="jobs, and files of frameworks, commands or scripts (see import)")
    gate.add_argument("--on", metavar="HARDWARE", help=f"what they are to run on, in place of what they say: {HARDWARE_HELP}")
    gate.add_argument("--model", metavar="MODEL", help=f"the model of files that name none: {MODEL_HELP}")
    forms = "as text, JSON, GitHub's annotations, GitLab's Code Quality, SARIF, or a table in Markdown"
    gate.add_argument("--format", choices=CHECKS, default="text", help=f"how it is printed: {forms} (text)")
    gate.add_argument(
        "--report", metavar="FILE", help="what an earlier check printed as JSON, in another form; nothing is checked"
    )
    takes_specs(gate)


def check(options: argparse.Namespace) -> int:
    from estimator.contract.validation import validated
    from estimator.planner.check import Checked, check_files
    from estimator.views.checks import FORMS

    if options.report is None:
        found = check_files(options.files, options.on, options.model)
    elif options.files:
        raise Contradiction("is of files that were checked before; give it alone", "--report")
    else:
        found = validated(Checked, parse_json(read_text(Path(options.report)), options.report), options.report)
    sys.stdout.write(FORMS[options.format](found))
    return found.exit_code


def ask_options(commands: Commands) -> None:
    out = commands.add_parser(
        "ask",
        help="the resources to request for a job",
        description="Print the resources to request for a job, as Slurm's header, or YAML of SkyPilot, dstack, Kubernetes or "
        "KServe: nodes, GPUs and which, memory of the host, and disk for what is saved, where known.",
    )
    takes_job(out)
    out.add_argument("--as", dest="to", choices=PLATFORMS, required=True, help="whom they are asked of")
    takes_specs(out)


def ask(options: argparse.Namespace) -> int:
    from estimator.exchange.ask import asked

    sys.stdout.write(asked(inputs.any_job(options), options.to, today=inputs.today()))
    return 0


def export_options(commands: Commands) -> None:
    out = commands.add_parser(
        "export",
        help="a job for the program that runs it",
        description="Print a job as a file of the framework that runs it, or its parallelism as DeepSpeed's JSON, "
        "Accelerate's YAML, torchtitan's TOML or Megatron arguments.",
    )
    takes_job(out)
    out.add_argument("--to", choices=FORMATS, required=True, help="the program")
    takes_specs(out)


def export(options: argparse.Namespace) -> int:
    from estimator.exchange import written

    sys.stdout.write(written(inputs.job(options.job), options.to))
    return 0


def import_options(commands: Commands) -> None:
    back = commands.add_parser(
        "import",
        help="a job of another program's configuration",
        description="Print what a configuration, a command or a script that holds one says, as a job file. Whose it is, is told "
        "by what it says; files that it points to are read beside it. What the job does not have, and what the framework's "
        "defaults filled in, goes to standard error.",
    )
    takes_file(back)
    takes_release(back)
    takes_data(back)
    back.add_argument("--json", action="store_true", help="print job, left_out and assumed as JSON")
    takes_specs(back)


def import_(options: argparse.Namespace) -> int:
    import yaml

    from estimator.exchange import Surroundings, read, read_file
    from estimator.hardware.parse import hardware_of

    if options.file == "-":
        hardware = hardware_of(options.on) if options.on else None
        around = Surroundings(hardware=hardware, allow_files=True, release=options.release)
        found = read(inputs.standard_input(), options.given, model=options.model, around=around)
    else:
        found = read_file(options.file, options.on, options.model, options.given, options.release)
    found = inputs.with_data(found, options)
    if options.json:
        print(found.model_dump_json(indent=2))
        return 0
    for name, entries in (("left out", found.left_out), ("assumed", found.assumed)):
        for entry in entries:
            print(f"willitfit: {name}: {entry}", file=sys.stderr)
    print(f"# read as a file of {found.framework} {found.version}".rstrip())
    sys.stdout.write(yaml.safe_dump(found.job, sort_keys=False))
    return 0
