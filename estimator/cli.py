"""The command line. Data goes to standard output, everything else to standard error.

Exit codes: 0 answered; 1 does not fit (only with --check); 2 usage or an invalid job; 3 unknown model or accelerator.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from estimator.errors import WillItFitError

if TYPE_CHECKING:
    from estimator.job import Job

DESCRIPTION = """\
Says, before a GPU is rented and without one, whether a transformer fits, why, and what would make it fit.

  willitfit MODEL --on HARDWARE     the headline question, for every usual way of using the model
  willitfit estimate JOB.yaml       one job in full
  willitfit verify JOB.yaml         the same beside what torch counts
  willitfit budget JOB.yaml         every way to rent what it needs, by cost and hours
  willitfit models [WORDS]          which models are known; `models show MODEL`: what one is made of
  willitfit gpus [WORDS]            which accelerators are known; all about one, with sources
  willitfit nodes [WORDS]           the same of systems and clouds' instances
  willitfit prices [WORDS]          what can be rented, and for how much; `prices refresh`: today's prices
  willitfit export JOB.yaml         its parallelism for DeepSpeed, Accelerate, torchtitan or Megatron-LM
  willitfit import FILE             a job of theirs
  willitfit serve                   the same as REST and a web page
"""
MODEL_HELP = "name or alias (llama-2-13b), size (13B, 8x7B), hub id, or path to a config.json or spec"
SPECS_HELP = "folder of your own specs, which add to the shipped ones and override them (also: WILLITFIT_SPECS)"
PRICES_HELP = "price list of your own, which adds to the shipped one and overrides it (also: WILLITFIT_PRICES)"
HARDWARE_HELP = "2x24GB, rtx-4090, 8xH100, p5.48xlarge, '2 nodes of 8xA100-80GB'"
CLOSE = 0.005
"""Relative error up to which `verify --check` is content."""
COMMANDS = ("estimate", "budget", "verify", "models", "gpus", "nodes", "prices", "export", "import", "serve")
FORMATS = {"deepspeed": ".json", "accelerate": ".yaml", "torchtitan": ".toml", "megatron": ""}
"""What jobs are written for and read of, and how such a file's name ends."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if not arguments:
            _headline_parser().print_help(sys.stderr)
            return 2
        command = arguments[0] in COMMANDS
        options = (_command_parser() if command else _headline_parser()).parse_args(arguments)
        for variable in ("specs", "prices"):
            if given := getattr(options, variable, None):
                os.environ[f"WILLITFIT_{variable.upper()}"] = given
        return _RUN[options.command](options) if command else _headline(options)
    except WillItFitError as error:
        print(f"willitfit: {error} [{error.slug}]", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _headline_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="willitfit", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--on", metavar="HARDWARE", required=True, help=HARDWARE_HELP)
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 if no way of using the model fits")
    parser.add_argument("--specs", metavar="DIR", help=SPECS_HELP)
    parser.add_argument("--version", action="version", version=f"willitfit {_version()}")
    return parser


def _command_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="willitfit", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("estimate", help="answer one job file in full", description="Answer one job in full.")
    one.add_argument("job", metavar="JOB.yaml", help="a job file; - reads standard input")
    one.add_argument("--json", action="store_true", help="print the answer as REST would send it")
    one.add_argument("--explain", action="store_true", help="name the tensors that are alive at the peak")
    one.add_argument("--ranks", action="store_true", help="list every stage of a pipeline, and what ranks exchange")
    one.add_argument("--check", action="store_true", help="exit with 1 if the job does not fit")
    rented = commands.add_parser(
        "budget",
        help="every way to rent what a job needs",
        description="Rank the offers that hold a training job by what its run costs; training.tokens says how much that is.",
    )
    rented.add_argument("job", metavar="JOB.yaml", help="a job file; - reads standard input")
    rented.add_argument("--max-cost", metavar="MONEY", type=_money, help="no dearer ones, in the offers' currency")
    rented.add_argument("--max-hours", metavar="HOURS", type=_positive, help="no slower ones")
    rented.add_argument("--max-gpus", metavar="N", type=_whole, default=64, help="on no more GPUs than these (64)")
    rented.add_argument("--gpu", metavar="NAME", help="only on this accelerator")
    for name, what in (
        ("provider", "of this provider"),
        ("region", "in this region"),
        ("kind", "paid for so: spot, reserved-1y"),
    ):
        rented.add_argument(f"--{name}", metavar=name.upper(), help=f"only offers {what}")
    rented.add_argument("--top", metavar="N", type=_whole, default=20, help="so many rows (20)")
    rented.add_argument("--json", action="store_true", help="print the rows as JSON, each with its job")
    rented.add_argument("--check", action="store_true", help="exit with 1 if it cannot be done within the limits")
    judged = commands.add_parser(
        "verify",
        help="let torch judge one job's answer",
        description="Play a training job's real model on fake tensors, and print what torch counts beside what was predicted.",
    )
    judged.add_argument("job", metavar="JOB.yaml", help="a job file; - reads standard input")
    judged.add_argument("--json", action="store_true", help="print both counts as JSON")
    judged.add_argument("--check", action="store_true", help="exit with 1 if the two counts are more than 0.5 %% apart")
    models = commands.add_parser(
        "models",
        help="models that are known, or what one is made of",
        description="List the known models whose names have the words in them, smallest first; after `show`, count one model's "
        "parameters by module, by layer and in bytes.",
    )
    models.add_argument(
        "words", metavar="WORDS", nargs="*", help=f"parts of a name, however written; or: show MODEL, a {MODEL_HELP}"
    )
    models.add_argument("--min", metavar="SIZE", type=_size, default=0, help="no smaller ones: 1B, 350M")
    models.add_argument("--max", metavar="SIZE", type=_size, default=float("inf"), help="no larger ones")
    models.add_argument("--json", action="store_true", help="print them as JSON")
    for name, what, kinds in (
        ("gpus", "accelerators", "a name, a vendor, an architecture, a form (sxm5), an amount of memory (24GB)"),
        ("nodes", "systems and clouds' instances", "a name, a provider, an accelerator, a number of GPUs (8x)"),
    ):
        listed = commands.add_parser(
            name,
            help=f"{what} that are known, or all about one",
            description=f"List the {what} that have all the words; if only one has, or they are its name, every fact about it "
            "with its sources. Unverified is what no second source confirms.",
        )
        listed.add_argument("words", metavar="WORDS", nargs="*", help=f"parts of {kinds}")
        listed.add_argument("--json", action="store_true", help="print them as JSON")
        listed.set_defaults(specs=None)
        listed.add_argument("--prices", metavar="FILE", help=PRICES_HELP)
    offered = commands.add_parser(
        "prices",
        help="what can be rented, and for how much",
        description="List the offers that have the words in them, cheapest per GPU first; after `refresh`, write today's prices, "
        "as gpuhunt finds them, to your own price list.",
    )
    offered.add_argument(
        "words", metavar="WORDS", nargs="*", help="of provider, instance, accelerator, kind or region; or: refresh"
    )
    offered.add_argument("--json", action="store_true", help="print them as JSON, with their sources")
    offered.add_argument("--provider", metavar="NAME", action="append", default=[], help="refresh: only this one (repeatable)")
    offered.add_argument("--output", metavar="FILE", help="refresh: write there (~/.config/willitfit/prices.yaml)")
    out = commands.add_parser(
        "export",
        help="a job's parallelism for the program that runs it",
        description="Print a job's parallelism as DeepSpeed's JSON, Accelerate's YAML, torchtitan's TOML or Megatron arguments.",
    )
    out.add_argument("job", metavar="JOB.yaml", help="a job file; - reads standard input")
    out.add_argument("--to", choices=FORMATS, required=True, help="the program")
    back = commands.add_parser(
        "import",
        help="a job of another program's configuration",
        description="Print what a configuration says of a job, as a job file; what has no field there goes to standard error.",
    )
    back.add_argument("file", metavar="FILE", help="the configuration; - reads standard input")
    back.add_argument("--from", dest="given", choices=FORMATS, help="the program; without it, by how the file's name ends")
    back.add_argument("--model", metavar="MODEL", help=f"the job's model: {MODEL_HELP}")
    for takes_models in (one, rented, judged, models, out, back):
        takes_models.add_argument("--specs", metavar="DIR", help=SPECS_HELP)
    serve = commands.add_parser("serve", help="start the REST service and the web page", description="Start the service.")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    serve.add_argument("--port", type=_port, default=8000, help="port to listen on (8000)")
    serve.add_argument("--specs", metavar="DIR", help=SPECS_HELP)
    for takes_prices in (one, rented, offered, serve):
        takes_prices.add_argument("--prices", metavar="FILE", help=PRICES_HELP)
    return parser


def _size(text: str) -> float:
    number, unit = text[:-1], text[-1:].lower()
    try:
        return float(number) * {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[unit]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of parameters; write 350M or 7B") from None


def _money(text: str) -> Decimal:
    try:
        found = Decimal(text)
    except InvalidOperation:
        found = Decimal(0)
    if not found.is_finite() or found <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of money; write 50 or 49.90")
    return found


def _positive(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of hours; write 24 or 0.5")
    return found


def _whole(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 2**17:
        raise argparse.ArgumentTypeError(f"{text!r} is no such number; write one from 1 to {2**17}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; write a number from 1 to 65535")
    return int(text)


def _version() -> str:
    from estimator.version import SOFTWARE_VERSION

    return SOFTWARE_VERSION


def _headline(options: argparse.Namespace) -> int:
    from estimator.planner.headline import fit

    asked = fit(options.model, options.on)
    if options.json:
        sys.stdout.write(asked.to_json())
    else:
        from estimator.report import headline_text

        sys.stdout.write(headline_text(asked))
    return 1 if options.check and not any(row.fits for row in asked.rows) else 0


def _estimate(options: argparse.Namespace) -> int:
    from estimator.estimation import estimate

    answer = estimate(_job(options.job), every_rank=options.ranks, today=_today())
    if options.json:
        sys.stdout.write(answer.to_json())
    else:
        from estimator.report import answer_text

        sys.stdout.write(answer_text(answer, options.explain, options.ranks))
    return 1 if options.check and answer.fits is False else 0


def _budget(options: argparse.Namespace) -> int:
    from estimator.planner.budget import Limits, budget, narrowed

    asked = {name: value for name in ("gpu", "provider", "region", "kind") if (value := getattr(options, name))}
    limits = Limits(options.max_cost, options.max_hours, options.max_gpus)
    found = budget(narrowed(_job(options.job), asked), limits, _today(), options.top)
    if options.json:
        sys.stdout.write(found.to_json())
    else:
        from estimator.report_budget import budget_text

        sys.stdout.write(budget_text(found))
    return 1 if options.check and not found.possible else 0


def _today() -> date:
    return date.today()


def _job(asked: str) -> Job:
    from estimator.job import job_from_text, read_job

    return job_from_text(sys.stdin.read(), "standard input") if asked == "-" else read_job(asked)


def _verify(options: argparse.Namespace) -> int:
    try:
        from estimator.verify.compare import comparison_text, verify
    except ImportError as error:
        print(f"willitfit: verify needs {error.name}; install it with: pip install 'willitfit[torch]'", file=sys.stderr)
        return 2
    found = verify(_job(options.job))
    if options.json:
        print(json.dumps({"predicted": found.predicted, "counted": found.counted}, indent=2))
    else:
        sys.stdout.write(comparison_text(found))
    return 1 if options.check and found.error > CLOSE else 0


def _models(options: argparse.Namespace) -> int:
    if options.words[:1] == ["show"]:
        return _show(" ".join(options.words[1:]), options.json)
    from estimator.listing import models
    from estimator.specs.published import every

    rows = models(" ".join(options.words), options.min, options.max)
    for error in every()[1]:
        print(f"willitfit: left out: {error}", file=sys.stderr)
    return _list(rows, options.json)


def _show(name: str, as_json: bool) -> int:
    from estimator.inspection import inspect_model

    card = inspect_model(name)
    if as_json:
        print(card.model_dump_json(indent=2))
    else:
        from estimator.report_model import card_text

        sys.stdout.write(card_text(card))
    return 0


def _gpus(options: argparse.Namespace) -> int:
    from estimator.hardware.accelerator import accelerator
    from estimator.listing import gpus
    from estimator.report_hardware import gpus_text

    return _found(gpus(" ".join(options.words)), options, accelerator, gpus_text)


def _nodes(options: argparse.Namespace) -> int:
    from estimator.hardware.node import node
    from estimator.listing import nodes
    from estimator.report_hardware import nodes_text

    return _found(nodes(" ".join(options.words)), options, node, nodes_text)


def _found(
    rows: list[dict[str, Any]], options: argparse.Namespace, read: Callable[[str], Any], text: Callable[[Any], str]
) -> int:
    """Prints rows, or all about the only one, or about the one that is named."""
    from estimator.report_hardware import facts_text

    named = [row["name"] for row in rows if len(rows) == 1 or row["name"] == "-".join(options.words).lower()]
    if options.json:
        print(read(named[0]).model_dump_json(indent=2) if named else json.dumps(rows, indent=2))
    else:
        sys.stdout.write(facts_text(read(named[0])) if named else text(rows))
    return 0


def _prices(options: argparse.Namespace) -> int:
    if options.words[:1] == ["refresh"]:
        return _refresh(options)
    if options.provider or options.output:
        print("willitfit: --provider and --output are of `prices refresh`", file=sys.stderr)
        return 2
    from estimator.listing import offers

    rows = offers(" ".join(options.words))
    return _list(rows if options.json else [{k: v for k, v in row.items() if k != "source"} for row in rows], options.json)


def _refresh(options: argparse.Namespace) -> int:
    from pathlib import Path

    from estimator.pricing.prices import own_file
    from estimator.pricing.refresh import refresh

    try:
        done = refresh(Path(options.output) if options.output else own_file(), options.provider)
    except ImportError as error:
        print(f"willitfit: prices refresh needs {error.name}; install it with: pip install 'willitfit[prices]'", file=sys.stderr)
        return 2
    if done.silent:
        print(f"willitfit: nothing came from {', '.join(done.silent)}", file=sys.stderr)
    if done.unknown:
        print(f"willitfit: left out, for they are no accelerators of ours: {', '.join(done.unknown)}", file=sys.stderr)
    print(f"{done.rows} prices in {done.path}")
    return 0


def _list(rows: list[dict[str, object]], as_json: bool) -> int:
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    from estimator.report import aligned

    header = [name.replace("_", " ") for name in rows[0]] if rows else ["none of that size"]
    print("\n".join(aligned([header, *([_cell(value) for value in row.values()] for row in rows)])))
    return 0


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else str(value)


def _export(options: argparse.Namespace) -> int:
    from estimator.exchange import written

    sys.stdout.write(written(_job(options.job), options.to))
    return 0


def _import(options: argparse.Namespace) -> int:
    from pathlib import Path

    import yaml

    from estimator.catalogue import read_text
    from estimator.exchange import read

    suffix = Path(options.file).suffix.replace(".yml", ".yaml")
    given = options.given or next((name for name, end in FORMATS.items() if end == suffix), "megatron")
    found = read(sys.stdin.read() if options.file == "-" else read_text(Path(options.file)), given)
    for setting in found.left_out:
        print(f"willitfit: left out: {setting}", file=sys.stderr)
    job = {"model": options.model, **found.job} if options.model else found.job
    sys.stdout.write(yaml.safe_dump(job, sort_keys=False))
    return 0


def _serve(options: argparse.Namespace) -> int:
    try:
        import uvicorn

        from api.app import app
    except ImportError as error:
        print(f"willitfit: serve needs {error.name}; install it with: pip install 'willitfit[service]'", file=sys.stderr)
        return 2
    uvicorn.run(app, host=options.host, port=options.port)
    return 0


_RUN = {
    "estimate": _estimate,
    "budget": _budget,
    "verify": _verify,
    "models": _models,
    "gpus": _gpus,
    "prices": _prices,
    "nodes": _nodes,
    "export": _export,
    "import": _import,
    "serve": _serve,
}

if __name__ == "__main__":
    sys.exit(main())
