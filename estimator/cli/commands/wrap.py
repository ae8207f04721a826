"""`willitfit wrap sbatch job.sh`: what a batch script starts is read and judged, and then handed to Slurm, or not."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from estimator.cli.options import HARDWARE_HELP, MODEL_HELP, takes_specs
from estimator.contract.errors import Unreadable, WillItFitError

if TYPE_CHECKING:
    from estimator.cli.options import Commands
    from estimator.exchange.gate import Ruling

REFUSED = 1
LONGEST_SCRIPT = 2**16
"""Bytes of a script of sbatch's name that are looked at."""


def wrap_options(commands: Commands) -> None:
    out = commands.add_parser(
        "wrap",
        help="sbatch, after a look whether the script's job fits",
        description="Read the batch script that sbatch is given, say whether its job fits, and run sbatch with its own options; "
        "if the job certainly does not fit, exit with 1 in place of that. The script is never run here. What cannot be read, or "
        "is not known, is submitted, with a word about it.",
        epilog="options of wrap stand before sbatch: willitfit wrap --on 8xH100 sbatch -N 2 job.sh",
    )
    out.add_argument("--on", metavar="HARDWARE", help=f"the GPUs, where the script's header does not name them: {HARDWARE_HELP}")
    out.add_argument("--model", metavar="MODEL", help=f"the model, where the script names none: {MODEL_HELP}")
    out.add_argument(
        "--force", "--warn-only", dest="force", action="store_true", help="submit it even if it does not fit, with a warning"
    )
    takes_specs(out)
    out.add_argument("program", choices=("sbatch",), help="what submits the script")
    out.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="sbatch's own options, the script, and its arguments"
    )


def wrap(options: argparse.Namespace) -> int:
    from estimator.exchange.gate import Ruling

    program = _program(options.program)
    if program is None:
        raise Unreadable("is not installed here, or not on the PATH", options.program)
    at = _script(options.arguments)
    if at is None:
        found = Ruling("unknown", "not known whether it fits: no file that begins with #! is among the arguments")
    else:
        found = _ruling(options, Path(options.arguments[at]), options.arguments[:at])
    print(f"willitfit: {found.says}", file=sys.stderr)
    if found.fits == "no" and not options.force:
        print("willitfit: not submitted; --force submits it nevertheless", file=sys.stderr)
        return REFUSED
    sys.stderr.flush()
    return subprocess.run([program, *options.arguments], check=False).returncode


def _program(name: str) -> str | None:
    """The first program of a name on the PATH, but for a script that calls willitfit: that is what stands in front of Slurm's."""
    found = (shutil.which(name, path=folder) for folder in os.get_exec_path() if folder)
    return next((path for path in found if path and not _is_ours(path)), None)


def _is_ours(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            start = file.read(LONGEST_SCRIPT)
    except OSError:
        return False
    return start.startswith(b"#!") and b"willitfit" in start


def _script(arguments: list[str]) -> int | None:
    """Where the script is among sbatch's arguments: the first file that begins as sbatch asks of one, with #!; the values of its
    options are none."""
    for at, word in enumerate(arguments):
        try:
            if not word.startswith("-") and os.path.isfile(word):
                with open(word, "rb") as file:
                    if file.read(2) == b"#!":
                        return at
        except (OSError, ValueError):
            continue
    return None


def _ruling(options: argparse.Namespace, path: Path, given: list[str]) -> Ruling:
    from estimator.contract.reading import read_text
    from estimator.exchange.documents import surroundings
    from estimator.exchange.gate import Ruling, ruling

    try:
        text = read_text(path)
    except WillItFitError as error:
        return Ruling("unknown", f"not known whether it fits: {error}")
    if given:
        text += f"\n#SBATCH {' '.join(' '.join(given).split())}\n"  # sbatch's own options are before those of the header
    return ruling(text, None, options.model, surroundings(path, options.on))
