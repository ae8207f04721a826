"""Commands that answer others: over HTTP and agents, until they are told to stop, and in browsers, by a folder of files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from estimator.cli.options import port, takes_prices, takes_specs

if TYPE_CHECKING:
    from estimator.cli.options import Commands


SERVICE = {
    "workers": ("N", "processes that answer new questions; without it, one for each processor"),
    "seconds": ("S", "processor time that a question may take (20)"),
    "memory": ("SIZE", "memory that a question may take (1GiB)"),
    "queue": ("N", "questions that may wait (64)"),
    "root_path": ("PATH", "path under which a proxy offers the service, such as /fit"),
}
"""Options of `serve` that are settings of the service; docs/rest.md has all of these."""


def serve_options(commands: Commands) -> None:
    serve = commands.add_parser("serve", help="start the REST service and the web page", description="Start the service.")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    serve.add_argument("--port", type=port, default=8000, help="port to listen on (8000)")
    for name, (metavar, text) in SERVICE.items():
        serve.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=f"{text} (also: WILLITFIT_{name.upper()})")
    takes_specs(serve)
    takes_prices(serve)


def serve(options: argparse.Namespace) -> int:
    try:
        run = _of_service("server").run
    except ImportError as error:
        print(f"willitfit: serve needs {error.name}; install it with: pip install 'willitfit[service]'", file=sys.stderr)
        return 2
    run(options.host, options.port)
    return 0


def mcp_options(commands: Commands) -> None:
    mcp = commands.add_parser(
        "mcp",
        help="answer agents over the Model Context Protocol",
        description="Offer the questions of the command line as tools for agents, over standard input and output.",
    )
    mcp.add_argument("--http", action="store_true", help="speak streamable HTTP at /mcp instead")
    mcp.add_argument("--host", default="127.0.0.1", help="address to listen on, with --http (127.0.0.1)")
    mcp.add_argument("--port", type=port, default=8001, help="port to listen on, with --http (8001)")
    takes_specs(mcp)
    takes_prices(mcp)


def mcp(options: argparse.Namespace) -> int:
    try:
        run = _of_service("agents").run
    except ImportError as error:
        print(f"willitfit: mcp needs {error.name}; install it with: pip install 'willitfit[mcp]'", file=sys.stderr)
        return 2
    run(options.http, options.host, options.port)
    return 0


def bundle_options(commands: Commands) -> None:
    bundle = commands.add_parser(
        "bundle",
        help="make a folder that answers in browsers, without a server, and an npm package",
        description="Make a static folder whose page works its answers out in the browser, and within it, in engine/, an npm "
        "package for Node and browsers. Needs Node.js, and fetches Pyodide from npm and Python packages by pip, once.",
    )
    bundle.add_argument("directory", metavar="DIR", type=Path, help="the folder: a new one, an empty one, or an older bundle")
    bundle.add_argument("--cache", metavar="DIR", type=Path, help="where fetched packages are kept (~/.cache/willitfit/browser)")


def bundle(options: argparse.Namespace) -> int:
    made = _of_service("browser.bundle")
    try:
        found = made.bundle(options.directory, options.cache)
    except made.Missing as error:
        print(f"willitfit: {error}", file=sys.stderr)
        return 2
    print(f"{found.folder}: {found.bytes / 1e6:.1f} MB; offer it to browsers with: python -m http.server -d {found.folder}")
    return 0


def _of_service(name: str) -> ModuleType:
    """A module of the service, which an installed package has within it, and a checkout beside it."""
    from importlib import import_module
    from importlib.util import find_spec

    return import_module(f"estimator.api.{name}" if find_spec("estimator.api") else f"api.{name}")
