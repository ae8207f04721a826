"""The MCP server: the questions of the command line as tools for agents, answered in few words unless all is asked for.

`willitfit mcp` speaks over standard input and output, with --http over streamable HTTP. Tools only read: no file of this machine,
no network. Errors say what to write instead, as everywhere.
"""

from __future__ import annotations

from . import facts, files, questions, searches  # noqa: F401  each adds its tools to the server
from .server import server

__all__ = ["run", "server"]


def run(http: bool, host: str, port: int) -> None:
    """Speak over standard input and output, or over streamable HTTP at /mcp."""
    if http:
        server.run("streamable-http", host=host, port=port)
    else:
        server.run("stdio")
