"""The command line. Data goes to standard output, everything else to standard error.

Exit codes: 0 answered; 1 does not fit (only with --check); 2 usage or an invalid job; 3 unknown model or accelerator;
130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from estimator.cli import inputs
from estimator.cli.commands import COMMANDS
from estimator.cli.commands.service import SERVICE
from estimator.cli.parsers import command_parser, headline_parser
from estimator.contract.errors import Contradiction, InvalidJob, WillItFitError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if not arguments:
            headline_parser().print_help(sys.stderr)
            return 2
        for option in arguments:
            if option.startswith("--") and option.endswith("=--"):  # which argparse takes for the end of the options
                raise InvalidJob("'--' is no value", option.partition("=")[0])
        command = arguments[0] in COMMANDS
        options = (command_parser() if command else headline_parser()).parse_args(arguments)
        serves = getattr(options, "command", None) == "serve"
        for variable in ("specs", "prices", *(SERVICE if serves else ())):
            if given := getattr(options, variable, None):
                os.environ[f"WILLITFIT_{variable.upper()}"] = given
        if isinstance(on := getattr(options, "on", None), str):
            options.on = _on(on)
        return COMMANDS[options.command].run(options) if command else _headline(options)
    except WillItFitError as error:
        print(f"willitfit: {error} [{error.slug}]", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _on(text: str) -> Any:
    """Hardware as it was written, but this machine as it is found, with what is to be said of it on standard error."""
    from estimator.hardware.parse import is_here

    if not is_here(text):
        return text
    from estimator.hardware.here import here

    found = here()
    for said in found.said:
        print(said, file=sys.stderr)
    return found.free if text.strip().lower().endswith(":free") else found.hardware


def _headline(options: argparse.Namespace) -> int:
    if (answered := _configuration(options)) is not None:
        return answered
    if options.data is not None or options.tokenizer is not None:
        raise Contradiction(
            "is of a training that a file says, not of a model's name: willitfit train.yaml --data FILE", "--data"
        )
    from estimator.planner.headline import fit

    asked = fit(
        options.model,
        options.on,
        context=options.context,
        concurrency=options.concurrency,
        sequence=options.sequence,
        batch=options.batch,
        task=options.task,
    )
    if options.json:
        sys.stdout.write(asked.to_json())
    else:
        from estimator.cli.report import headline_text

        sys.stdout.write(headline_text(asked))
    return 1 if options.check and not any(row.fits for row in asked.rows) else 0


def _configuration(options: argparse.Namespace) -> int | None:
    """The answer to a file of a framework, or to a job, in place of a model's name; None where it is no such file."""
    from pathlib import Path

    if not os.path.isfile(options.model):  # which is asked of what can be no path as well
        return None
    path = Path(options.model)
    from estimator.exchange import answer, is_configuration, read_file

    if not is_configuration(path):
        return None
    if options.task is not None:
        raise Contradiction(f"{options.model} says its task itself; --task is of a model's name", "--task")
    found = answer(inputs.with_data(read_file(path, options.on, options.of), options), today=inputs.today())
    if options.json:
        sys.stdout.write(found.to_json())
    else:
        from estimator.cli.report import answer_text

        sys.stdout.write(answer_text(found, False, False))
    return 1 if options.check and found.fits is False else 0
