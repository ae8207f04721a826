"""Text, YAML, JSON and TOML of files that anyone may have written, and what is wrong with one that cannot be read.

Everything is bounded before it is expanded or built: bytes of a file, values of a document (an alias counts as all that it stands
for), levels of nesting. libyaml overruns its stack on 100,000 brackets, a few hundred bytes of aliases stand for gigabytes, and
tomllib takes time by the square of a dotted key.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, BinaryIO

from estimator.contract.errors import Unreadable

MOST_BYTES = 1 << 20
MOST_VALUES = 50_000
MOST_LEVELS = 64
MOST_TOML = 1 << 17
_DOTTED = re.compile(r"""[\w\-"'. \t]+""")
MOST_DOTS = 32
_LONG_NUMBER = re.compile(r"[-+]?[\d.][\w.:+-]{127,}")
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "map", "seq"))


def read_text(path: Path) -> str:
    """A file's text, of `MOST_BYTES` at most; `InvalidJob` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return bounded_text(file, str(path))
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {getattr(error, 'strerror', None) or error}", str(path)) from None


def bounded_text(file: BinaryIO, where: str) -> str:
    """The text of what is open, of `MOST_BYTES` at most; `InvalidJob` for more, and for what is no text."""
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Unreadable(f"has more than {MOST_BYTES:,} bytes, as no job or configuration needs", where)
    return decoded(data, where)


def decoded(data: bytes, where: str) -> str:
    """Bytes as text in UTF-8, line ends as \\n; `InvalidJob` for what is no text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not text in UTF-8 ({error.reason})", where) from None
    if "\0" in text:
        raise Unreadable("is no text: it has zero bytes", where)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def load_yaml(path: Path) -> Any:
    """A YAML file's content; `InvalidJob` if it cannot be read."""
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """YAML text as Python values; `InvalidJob` with line and column if it is broken, or too large to be built."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _bound(yaml.parse(text, Loader=loader), where)
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        if "nesting" in str(error):  # libyaml's own bound, which its scanner may meet before ours
            raise Unreadable(f"is nested too deeply: more than {MOST_LEVELS} levels", where) from None
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise Unreadable(f"is not valid YAML{place}: {getattr(error, 'problem', error)}", where) from None
    except RecursionError:
        raise Unreadable("is nested too deeply", where) from None
    except (ValueError, ArithmeticError, LookupError) as error:  # a date or a number that is none
        raise Unreadable(f"has a value that is not valid YAML: {error}", where) from None


def _bound(events: Any, where: str) -> None:
    """Go through a document's events, of which libyaml builds nothing, and raise for more than is ever built."""
    import yaml

    starts, ends = (yaml.MappingStartEvent, yaml.SequenceStartEvent), (yaml.MappingEndEvent, yaml.SequenceEndEvent)
    values, sizes, open_ = 0, dict[str, int](), list[tuple[str | None, int]]()
    for event in events:
        if isinstance(event, ends):
            anchor, before = open_.pop()
            if anchor is not None:
                sizes[anchor] = values - before
            continue
        alias = isinstance(event, yaml.AliasEvent)
        if alias and any(event.anchor == anchor for anchor, _ in open_):
            raise Unreadable(f"has an alias, *{event.anchor[:60]}, within what it stands for", where)
        values += sizes.get(event.anchor, 1) if alias else 1
        if isinstance(event, starts):
            open_.append((event.anchor, values))
            if len(open_) > MOST_LEVELS:
                raise Unreadable(f"is nested too deeply: more than {MOST_LEVELS} levels", where)
        if (tag := getattr(event, "tag", None)) and tag not in _PLAIN_TAGS:
            raise Unreadable(f"has a tag, {tag[:60]}: write plain values", where)
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and _LONG_NUMBER.fullmatch(event.value):
            raise Unreadable("has a number of more than a hundred digits", where)
        if values > MOST_VALUES:
            raise Unreadable(f"has more than {MOST_VALUES:,} values, those that its aliases stand for among them", where)


def parse_json(text: str, where: str) -> Any:
    """JSON text as Python values; `InvalidJob` if it is broken, or too large to be built."""
    if text.count(",") + text.count("[") + text.count("{") > MOST_VALUES:
        raise Unreadable(f"has more than {MOST_VALUES:,} values", where)
    try:
        found = json.loads(text)
        _bound_levels(found, where)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError:
        raise Unreadable("is nested too deeply", where) from None
    except UnicodeEncodeError:
        raise Unreadable("has half a surrogate pair, which is no text", where) from None
    except ValueError as error:
        raise Unreadable(f"is not JSON: {error}", where) from None


def _bound_levels(found: Any, where: str) -> None:
    """Raise for more levels of nesting than are ever written, which pydantic does not write out again."""
    level = [found]
    for _ in range(MOST_LEVELS + 1):
        level = [
            inner for one in level if isinstance(one, dict | list) for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise Unreadable(f"is nested too deeply: more than {MOST_LEVELS} levels", where)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """TOML text as Python values; `InvalidJob` if it is broken, or too large to be built."""
    import tomllib

    if len(text) > MOST_TOML:
        raise Unreadable(f"has more than {MOST_TOML:,} characters, as no configuration needs", where)
    if any(run.count(".") > MOST_DOTS for run in _DOTTED.findall(text)):
        raise Unreadable(f"is nested too deeply: a key of more than {MOST_DOTS} parts", where)
    if re.search(r"0[xob][0-9a-fA-F_]{100}", text):
        raise Unreadable("has a number of more than a hundred digits", where)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise Unreadable("is nested too deeply", where) from None
    except ValueError as error:
        raise Unreadable(f"is not TOML: {error}", where) from None
