"""The command line. Data goes to standard output, everything else to standard error.

Exit codes: 0 answered; 1 does not fit (only with --check); 2 usage or an invalid job; 3 unknown model or accelerator;
130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import date
from types import ModuleType
from typing import TYPE_CHECKING, Any

from estimator.cli.options import SERVICE, command_parser, headline_parser
from estimator.contract.errors import InvalidJob, WillItFitError

if TYPE_CHECKING:
    from estimator.contract.job import Job

INTERRUPTED = 130
"""Exit code of what Ctrl-C ended, as shells have it."""
CLOSE = 0.005
"""Relative error up to which `verify --check` is content."""


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
        return COMMANDS[options.command](options) if command else _headline(options)
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
    from estimator.planner.headline import fit

    asked = fit(
        options.model,
        options.on,
        context=options.context,
        concurrency=options.concurrency,
        sequence=options.sequence,
        batch=options.batch,
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

    path = Path(options.model)
    if "\0" in options.model or len(options.model) > 4000 or not path.is_file():
        return None
    from estimator.exchange import answer, is_configuration, read_file

    if not is_configuration(path):
        return None
    found = answer(read_file(path, options.on, options.of), today=_today())
    if options.json:
        sys.stdout.write(found.to_json())
    else:
        from estimator.cli.report import answer_text

        sys.stdout.write(answer_text(found, False, False))
    return 1 if options.check and found.fits is False else 0


def _estimate(options: argparse.Namespace) -> int:
    from estimator.pipeline.estimation import estimate

    answer = estimate(_job(options.job), every_rank=options.ranks, today=_today())
    if options.json:
        sys.stdout.write(answer.to_json())
    else:
        from estimator.cli.report import answer_text

        sys.stdout.write(answer_text(answer, options.explain, options.ranks))
    return 1 if options.check and answer.fits is False else 0


def _fix(options: argparse.Namespace) -> int:
    from estimator.planner.fix import fix, fix_file

    if options.file == "-":
        if options.write:
            raise InvalidJob("standard input is no file to write to", "--write")
        found = fix(_standard_input().encode(), options.on, options.model, options.given)
    else:
        found = fix_file(options.file, options.on, options.model, options.given, options.write)
    if options.json:
        sys.stdout.write(found.to_json())
    else:
        from estimator.cli.report_fix import fixes_text

        sys.stdout.write(fixes_text(found))
        if options.write and found.fixes:
            print(f"willitfit: written to {options.file}", file=sys.stderr)
    return 1 if options.check and not found.fits and not found.fixes else 0


def _diff(options: argparse.Namespace) -> int:
    from estimator.planner.diff import diff_files

    found = diff_files(options.a, options.b, options.on, options.model)
    if options.json:
        sys.stdout.write(found.to_json())
    else:
        from estimator.cli.report_diff import differences_text

        sys.stdout.write(differences_text(found))
    return 1 if options.check and found.settings else 0


def _limit(options: argparse.Namespace) -> int:
    from estimator.planner.limits import limit

    found = limit(_any_job(options.job), options.field, options.command, on=options.on, tries=options.tries)
    if options.json:
        sys.stdout.write(found.to_json())
    else:
        from estimator.cli.report_limit import limit_text

        sys.stdout.write(limit_text(found))
    return 1 if options.check and found.fits is False else 0


def _any_job(asked: str) -> str | dict[str, Any]:
    """The path of any file that is read as a job; or what standard input says."""
    if asked != "-":
        return asked
    from estimator.exchange import Surroundings, read

    return read(_standard_input(), around=Surroundings(allow_files=True)).job


def _what_if(options: argparse.Namespace) -> int:
    from estimator.cli.progress import Progress
    from estimator.planner.what_if import read_changes, what_if

    if options.plot and not options.plot.lower().endswith(".svg"):
        raise InvalidJob("is drawn as SVG: write a name that ends in .svg", "--plot")
    found = what_if(_any_job(options.job), read_changes(options.changes), on=options.on, watch=Progress("combinations"))
    if options.plot:
        from pathlib import Path

        from estimator.views.picture import picture

        try:
            Path(options.plot).write_text(picture(found), encoding="utf-8")
        except OSError as error:
            raise InvalidJob(f"cannot be written: {error.strerror}", options.plot) from None
    if options.json:
        sys.stdout.write(found.to_json())
    elif options.csv:
        sys.stdout.write(found.to_csv())
    else:
        from estimator.cli.report_what_if import what_if_text

        sys.stdout.write(what_if_text(found))
    return 0 if found.complete else INTERRUPTED


def _which(options: argparse.Namespace) -> int:
    from estimator.cli.progress import Progress
    from estimator.planner.which import which

    asked = ("task", "within", "under", "memory", "context", "concurrency", "sequence", "batch", "tokens", "max_gpus", "top")
    given = {name: getattr(options, name) for name in asked}
    found = which(options.asked, **given, today=_today(), watch=Progress("cards and numbers of them"))
    if options.json:
        sys.stdout.write(found.to_json())
    else:
        from estimator.cli.report_which import which_text

        sys.stdout.write(which_text(found))
    if not found.complete:
        return INTERRUPTED
    return 1 if options.check and not found.possible else 0


def _timeline(options: argparse.Namespace) -> int:
    from estimator.timelines.timeline import record, timeline_of

    step = record(_any_job(options.job), options.on)
    found = timeline_of(step, options.tensors)
    written = []
    if options.svg:
        from estimator.timelines.picture import svg

        written.append(_write(options.svg, svg(found).encode()))
    if options.chrome:
        from estimator.timelines.chrome import chrome

        written.append(_write(options.chrome, chrome(step).encode()))
    if options.snapshot:
        from estimator.timelines.snapshot import snapshot

        written.append(_write(options.snapshot, snapshot(step)))
    if options.json:
        sys.stdout.write(found.to_json())
    else:
        from estimator.cli.report_timeline import timeline_text

        sys.stdout.write(timeline_text(found))
    for path in written:
        print(f"willitfit: written: {path}", file=sys.stderr)
    return 0


def _explain(options: argparse.Namespace) -> int:
    from pathlib import Path

    from estimator.measured.explain import explain

    if options.job == "-" and options.measured == "-":
        raise InvalidJob("only one of job and record can come from standard input", "--measured")
    measured = sys.stdin.buffer.read() if options.measured == "-" else Path(options.measured)
    found = explain(_any_job(options.job), measured, on=options.on)
    if options.json:
        sys.stdout.write(found.to_json())
    else:
        from estimator.cli.report_explain import explanation_text

        sys.stdout.write(explanation_text(found))
    return 1 if options.check and found.verdict == "not explained" else 0


def _write(path: str, content: bytes) -> str:
    """Write a file, and its path; `InvalidJob` where that cannot be done."""
    from pathlib import Path

    from estimator.contract.errors import Unreadable

    try:
        Path(path).write_bytes(content)
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be written: {getattr(error, 'strerror', None) or error}", path) from None
    return path


def _budget(options: argparse.Namespace) -> int:
    from estimator.planner.budget import Limits, budget, narrowed

    asked = {name: value for name in ("gpu", "provider", "region", "kind") if (value := getattr(options, name))}
    limits = Limits(options.max_cost, options.max_hours, options.max_gpus)
    found = budget(narrowed(_job(options.job), asked), limits, _today(), options.top)
    if options.json:
        sys.stdout.write(found.to_json())
    else:
        from estimator.cli.report_budget import budget_text

        sys.stdout.write(budget_text(found))
    return 1 if options.check and not found.possible else 0


def _today() -> date:
    return date.today()


def _job(asked: str) -> Job:
    from estimator.contract.job import job_from_text, read_job

    return job_from_text(_standard_input(), "standard input") if asked == "-" else read_job(asked)


def _standard_input() -> str:
    """Its text, bounded as that of a file."""
    from estimator.contract.reading import MOST_BYTES, decoded

    return decoded(sys.stdin.buffer.read(MOST_BYTES + 1)[:MOST_BYTES], "standard input")


def _verify(options: argparse.Namespace) -> int:
    try:
        from estimator.verify.compare import comparison_text, verify
    except ImportError as error:
        print(f"willitfit: verify needs {error.name}; install it with: pip install 'willitfit[torch]'", file=sys.stderr)
        return 2
    found = verify(_job(options.job))
    if options.json:
        from estimator.contract.answer import as_text
        from estimator.contract.rows import Counted

        sys.stdout.write(as_text(Counted(predicted=found.predicted, counted=found.counted)))
    else:
        sys.stdout.write(comparison_text(found))
    return 1 if options.check and found.error > CLOSE else 0


def _models(options: argparse.Namespace) -> int:
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
    return _list(rows, options.json)


def _fitting(options: argparse.Namespace) -> int:
    from estimator.cli.progress import Progress
    from estimator.views.fitting import fitting

    if not options.on:
        raise InvalidJob("needs hardware: write --on here, or --on 24GB", "--fits")
    sizes = {"search": " ".join(options.words), "least": options.min, "most": options.max, "top": options.top}
    lengths = {name: getattr(options, name) for name in ("context", "concurrency", "sequence", "batch")}
    found = fitting(options.on, options.task, **sizes, **lengths, watch=Progress("models"))
    if options.json:
        sys.stdout.write(found.to_json())
    else:
        from estimator.cli.report_fitting import fitting_text

        sys.stdout.write(fitting_text(found))
    return 0 if found.complete else INTERRUPTED


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


def _gpus(options: argparse.Namespace) -> int:
    from estimator.cli.report_hardware import gpus_text
    from estimator.hardware.accelerator import accelerator
    from estimator.views.listing import gpus

    return _found(gpus(" ".join(options.words)), options, accelerator, gpus_text)


def _nodes(options: argparse.Namespace) -> int:
    from estimator.cli.report_hardware import nodes_text
    from estimator.hardware.node import node
    from estimator.views.listing import nodes

    return _found(nodes(" ".join(options.words)), options, node, nodes_text)


def _found(
    rows: list[dict[str, Any]], options: argparse.Namespace, read: Callable[[str], Any], text: Callable[[Any], str]
) -> int:
    """Prints rows, or all about the only one, or about the one that is named."""
    from estimator.cli.report_hardware import facts_text

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
    from estimator.views.listing import offers

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
    from estimator.cli.report import aligned

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


def _ask(options: argparse.Namespace) -> int:
    from estimator.exchange.ask import asked

    sys.stdout.write(asked(_job(options.job), options.to, today=_today()))
    return 0


def _import(options: argparse.Namespace) -> int:
    import yaml

    from estimator.exchange import Surroundings, read, read_file
    from estimator.hardware.parse import hardware_of

    if options.file == "-":
        hardware = hardware_of(options.on) if options.on else None
        around = Surroundings(hardware=hardware, allow_files=True)
        found = read(_standard_input(), options.given, model=options.model, around=around)
    else:
        found = read_file(options.file, options.on, options.model, options.given)
    if options.json:
        print(found.model_dump_json(indent=2))
        return 0
    for name, entries in (("left out", found.left_out), ("assumed", found.assumed)):
        for entry in entries:
            print(f"willitfit: {name}: {entry}", file=sys.stderr)
    print(f"# read as a file of {found.framework} {found.version}".rstrip())
    sys.stdout.write(yaml.safe_dump(found.job, sort_keys=False))
    return 0


def _of_service(name: str) -> ModuleType:
    """A module of the service, which an installed package has within it, and a checkout beside it."""
    from importlib import import_module
    from importlib.util import find_spec

    return import_module(f"estimator.api.{name}" if find_spec("estimator.api") else f"api.{name}")


def _serve(options: argparse.Namespace) -> int:
    try:
        run = _of_service("server").run
    except ImportError as error:
        print(f"willitfit: serve needs {error.name}; install it with: pip install 'willitfit[service]'", file=sys.stderr)
        return 2
    run(options.host, options.port)
    return 0


def _mcp(options: argparse.Namespace) -> int:
    try:
        run = _of_service("agents").run
    except ImportError as error:
        print(f"willitfit: mcp needs {error.name}; install it with: pip install 'willitfit[mcp]'", file=sys.stderr)
        return 2
    run(options.http, options.host, options.port)
    return 0


COMMANDS = {
    "estimate": _estimate,
    "max": _limit,
    "min": _limit,
    "what-if": _what_if,
    "which": _which,
    "timeline": _timeline,
    "explain": _explain,
    "fix": _fix,
    "diff": _diff,
    "budget": _budget,
    "verify": _verify,
    "models": _models,
    "gpus": _gpus,
    "nodes": _nodes,
    "prices": _prices,
    "ask": _ask,
    "export": _export,
    "import": _import,
    "serve": _serve,
    "mcp": _mcp,
}
"""Each command's function, in the order in which they are listed."""
