"""The command line. Data goes to standard output, everything else to standard error.

Exit codes: 0 answered; 1 does not fit (only with --check); 2 usage or an invalid job; 3 unknown model or accelerator;
130 interrupted.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from estimator.cli import inputs
from estimator.cli.asked import spoken
from estimator.cli.commands import COMMANDS
from estimator.cli.commands.service import SERVICE
from estimator.cli.parsers import command_parser, headline_parser
from estimator.contract.errors import Contradiction, InvalidJob, WillItFitError
from estimator.questions.read import ASKING
from estimator.questions.shapes import HOW_TO_ASK

COLLECTED = 50_000
"""New objects after which Python searches for cycles, in place of 700: a tenth of the time of loading modules went there."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # for which pydantic would read what every package offers
    before = gc.get_threshold()
    gc.set_threshold(COLLECTED, *before[1:])
    try:
        return _main(argv)
    finally:
        gc.set_threshold(*before)


def _main(argv: Sequence[str] | None) -> int:
    arguments = given = list(sys.argv[1:] if argv is None else argv)
    try:
        if not arguments:
            headline_parser().print_help(sys.stderr)
            return 2
        for option in arguments:
            if option.startswith("--") and option.endswith("=--"):  # which argparse takes for the end of the options
                raise InvalidJob("'--' is no value", option.partition("=")[0])
        arguments = spoken(arguments)
        if arguments is not given:
            print(f"Read as: willitfit {' '.join(map(_quoted, arguments))}", file=sys.stderr)
        command = arguments[0] in COMMANDS
        options = command_parser().parse_args(arguments) if command else headline_parser().parse_args(_joined(arguments))
        serves = getattr(options, "command", None) == "serve"
        for variable in ("specs", "prices", *(SERVICE if serves else ())):
            if named := getattr(options, variable, None):
                os.environ[f"WILLITFIT_{variable.upper()}"] = named
        if isinstance(on := getattr(options, "on", None), str):
            options.on = _on(on)
        return COMMANDS[options.command].run(options) if command else _headline(options)
    except WillItFitError as error:
        print(f"willitfit: {error} [{error.slug}]", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _joined(arguments: list[str]) -> list[str]:
    """A headline's arguments with a name of several words in one, as people write it: llama 3.1 8b --on rtx 4090. Of words before
    the first option the model's name is made, of words after --on what it runs on, where the model stands before it."""
    options = [place for place, word in enumerate(arguments) if word.startswith("-")] + [len(arguments)]
    found = [" ".join(arguments[: options[0]])] if options[0] else []
    for start, end in pairwise(options):
        option, *words = arguments[start:end]
        joined = option == "--on" and words and found
        found += [option, " ".join(words)] if joined else [option, *words]
    return found


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
    if options.release is not None:
        raise Contradiction("is of a framework's file, not of a model's name: willitfit train.yaml --release 0.9.1", "--release")
    if options.on is None:
        raise _without_hardware(options.model)
    from estimator.planner.headline import fit

    asked = fit(
        options.model,
        options.on,
        context=options.context,
        concurrency=options.concurrency,
        sequence=options.sequence,
        batch=options.batch,
        task=options.task,
        tokens=options.tokens,
        engine=options.engine,
    )
    if options.json:
        sys.stdout.write(asked.to_json())
    else:
        from estimator.cli.report_headline import headline_text

        sys.stdout.write(headline_text(asked))
    return 1 if options.check and not any(row.fits for row in asked.rows) else 0


def _quoted(word: str) -> str:
    return f"'{word}'" if " " in word else word


def _without_hardware(model: str) -> InvalidJob:
    """What to write where a model's name stands alone, a question is not understood, or a command is misspelt."""
    from difflib import get_close_matches

    first, *more = model.split() or [""]
    meant = get_close_matches(first.lower(), [*COMMANDS, *ASKING], 1, 0.7)
    if meant and meant[0] in COMMANDS:
        return InvalidJob(f"no command {first!r}: did you mean willitfit {' '.join([*meant, *more])}?", "command")
    if meant and more:
        return InvalidJob(f"not understood: {model!r}. {HOW_TO_ASK}", "question")
    return InvalidJob(f"say what it is to run on: willitfit '{model}' --on rtx-4090, 2x24GB, 8xH100, here …", "--on")


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
        raise inputs.says_its_task(options.model)
    found = answer(
        inputs.with_data(read_file(path, options.on, options.of, release=options.release), options), today=inputs.today()
    )
    if options.json:
        sys.stdout.write(found.to_json())
    else:
        from estimator.cli.report import answer_text

        sys.stdout.write(answer_text(found, False, False))
    return 1 if options.check and found.fits is False else 0
