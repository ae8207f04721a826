"""Commands that list what is known of hardware: accelerators, nodes, prices."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from estimator.cli.options import takes_prices

if TYPE_CHECKING:
    from estimator.cli.options import Commands


def gpus_options(commands: Commands) -> None:
    _hardware_options(
        commands,
        "gpus",
        "accelerators",
        "a name, a vendor, an architecture, a form (sxm5), an amount of memory (24GB)",
    )


def gpus(options: argparse.Namespace) -> int:
    from estimator.cli.report_hardware import gpus_text
    from estimator.hardware.accelerator import accelerator
    from estimator.views.listing import gpus

    return _found(gpus(" ".join(options.words)), options, accelerator, gpus_text)


def nodes_options(commands: Commands) -> None:
    _hardware_options(
        commands, "nodes", "systems and clouds' instances", "a name, a provider, an accelerator, a number of GPUs (8x)"
    )


def _hardware_options(commands: Commands, name: str, what: str, kinds: str) -> None:
    listed = commands.add_parser(
        name,
        help=f"{what} that are known, or all about one",
        description=f"List the {what} that have all the words; if only one has, or they are its name, every fact about it "
        "with its sources. Unverified is what no second source confirms.",
    )
    listed.add_argument("words", metavar="WORDS", nargs="*", help=f"parts of {kinds}")
    listed.add_argument("--json", action="store_true", help="print them as JSON")
    takes_prices(listed)


def nodes(options: argparse.Namespace) -> int:
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


def prices_options(commands: Commands) -> None:
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
    takes_prices(offered)


def prices(options: argparse.Namespace) -> int:
    if options.words[:1] == ["refresh"]:
        return _refresh(options)
    if options.provider or options.output:
        print("willitfit: --provider and --output are of `prices refresh`", file=sys.stderr)
        return 2
    from estimator.views.listing import offers

    rows = offers(" ".join(options.words))
    return listed(rows if options.json else [{k: v for k, v in row.items() if k != "source"} for row in rows], options.json)


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


def listed(rows: list[dict[str, object]], as_json: bool) -> int:
    """Print rows: as JSON, or as a table."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    from estimator.cli.table import aligned

    header = [name.replace("_", " ") for name in rows[0]] if rows else ["none of that size"]
    print("\n".join(aligned([header, *([_cell(value) for value in row.values()] for row in rows)])))
    return 0


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else str(value)


def schema_options(commands: Commands) -> None:
    out = commands.add_parser(
        "schema",
        help="the JSON Schema of a job, or of an answer",
        description="Print the JSON Schema of a job, of a file of model_specs/ (model), or of an answer, by its name. Editors "
        "complete and check a file by it; a service has it at /schema/NAME.json.",
    )
    out.add_argument(
        "name", metavar="NAME", nargs="?", default="job", help="job (if none is given), model, answer, fit, limit, …"
    )


def schema(options: argparse.Namespace) -> int:
    from estimator.views.schemas import schema_text

    sys.stdout.write(schema_text(options.name))
    return 0
