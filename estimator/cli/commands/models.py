"""The command that lists models: all that are known, one in full, those that fit; and adds one."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from estimator.cli import inputs
from estimator.cli.commands.known import listed
from estimator.cli.options import HARDWARE_HELP, MODEL_HELP, TASKS, size, takes_lengths, takes_specs, whole
from estimator.contract.errors import InvalidJob

if TYPE_CHECKING:
    from estimator.cli.options import Commands


def models_options(commands: Commands) -> None:
    models = commands.add_parser(
        "models",
        help="models that are known, or what one is made of",
        description="List the known models whose names have the words in them, smallest first; after `show`, count one model's "
        "parameters by module, by layer and in bytes; after `add`, write a spec of one that is not known into your own folder.",
    )
    models.add_argument(
        "words",
        metavar="WORDS",
        nargs="*",
        help=f"parts of a name, however written; or: show MODEL, a {MODEL_HELP}; or: add PATH or HUB_ID",
    )
    models.add_argument("--name", metavar="NAME", help="with add: what it is to be called")
    models.add_argument("--min", metavar="SIZE", type=size, default=0, help="the least parameters: 1B, 350M")
    models.add_argument("--max", metavar="SIZE", type=size, default=float("inf"), help="the most parameters")
    models.add_argument("--json", action="store_true", help="print them as JSON")
    fits = models.add_argument_group("--fits", "which of them fit on some hardware, the newest and largest first")
    fits.add_argument(
        "--fits", action="store_true", help="only those, with the type of weights, the context and tokens per second"
    )
    fits.add_argument("--on", metavar="HARDWARE", help=HARDWARE_HELP)
    fits.add_argument("--task", metavar="TASK", default="serve", help=f"what they are used for: {', '.join(TASKS)} (serve)")
    takes_lengths(fits)
    fits.add_argument("--top", metavar="N", type=whole, default=20, help="how many; models after these are not looked at (20)")
    takes_specs(models)


def models(options: argparse.Namespace) -> int:
    if options.words[:1] == ["show"]:
        return _show(" ".join(options.words[1:]), options.json)
    if options.words[:1] == ["add"]:
        return _add(" ".join(options.words[1:]), options.name)
    if options.name:
        print("willitfit: --name is of `models add`", file=sys.stderr)
        return 2
    if options.fits:
        return _fitting(options)
    if options.on:
        raise InvalidJob("is of --fits: write models --fits --on HARDWARE", "--on")
    from estimator.specs.published import every
    from estimator.views.listing import models

    rows = models(" ".join(options.words), options.min, options.max)
    for error in every()[1]:
        print(f"willitfit: left out: {error}", file=sys.stderr)
    return listed(rows, options.json)


def _fitting(options: argparse.Namespace) -> int:
    from estimator.cli.progress import Progress
    from estimator.cli.report_fitting import fitting_text
    from estimator.views.fitting import fitting

    if not options.on:
        raise InvalidJob("needs hardware: write --on here, or --on 24GB", "--fits")
    sizes = {"search": " ".join(options.words), "least": options.min, "most": options.max, "top": options.top}
    lengths = {name: getattr(options, name) for name in ("context", "concurrency", "sequence", "batch")}
    found = fitting(options.on, options.task, **sizes, **lengths, watch=Progress("models"))
    inputs.printed(options, found, fitting_text)
    return 0 if found.complete else inputs.INTERRUPTED


def _show(name: str, as_json: bool) -> int:
    from estimator.views.inspection import inspect_model

    card = inspect_model(name)
    if as_json:
        print(card.model_dump_json(indent=2))
    else:
        from estimator.cli.report_model import card_text

        sys.stdout.write(card_text(card))
    return 0


def _add(source: str, name: str | None) -> int:
    from estimator.specs.adding import added

    path, model = added(source, name)
    print(f"{path}: {model.spec.model_type}; ask about it as {path.stem}")
    return 0
