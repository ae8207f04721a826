"""The tables of docs/errors.md: every code of an error, from the class that has it."""

from __future__ import annotations

from estimator.contract.errors import WillItFitError


def page() -> dict[str, str]:
    """By part of the page, the codes of a slug."""
    return {kind.slug: _table(kind) for kind in WillItFitError.__subclasses__() if kind.__subclasses__()}


def _table(kind: type[WillItFitError]) -> str:
    rows = [f"| `{one.code}` | `{one.__name__}` | {(one.__doc__ or '').strip()} |" for one in kind.__subclasses__()]
    return "\n".join(["| `code` | in `estimator.contract.errors` | |", "|---|---|---|", *rows, ""])
