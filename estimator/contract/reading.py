"""Text and YAML of files, and what is wrong with a file that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from estimator.contract.errors import Unreadable


def read_text(path: Path) -> str:
    """A file's text; `InvalidJob` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not text in UTF-8 ({error.reason})", str(path)) from None
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {getattr(error, 'strerror', None) or error}", str(path)) from None


def load_yaml(path: Path) -> Any:
    """A YAML file's content; `InvalidJob` if it cannot be read."""
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """YAML text as Python values; `InvalidJob` with line and column if it is broken."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise Unreadable(f"is not valid YAML{place}: {getattr(error, 'problem', error)}", where) from None
    except RecursionError:
        raise Unreadable("is nested too deeply", where) from None
