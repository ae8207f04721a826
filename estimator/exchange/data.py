"""The lengths of the samples that a job trains on, read from a local file of them: JSON lines, a list in JSON, or Parquet.

A file is bounded before it is read: bytes, rows, and the size of a row. Of a larger one the first part is read, and that is said.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from estimator.contract.errors import InvalidValue, Unreadable
from estimator.contract.reading import load_yaml
from estimator.contract.validation import validated
from estimator.facts.fact import Fact

MOST_BYTES = 256 << 20
MOST_ROW = 4 << 20
MOST_ROWS = 2_000_000
MOST_PARTS = 100_000
TOKENIZER_BYTES = 64 << 20
CHUNK, BEGINNING = 1 << 16, 64
"""Letters of a list that are read at a time, and bytes of which the first that is no blank says whether it is one."""
PARQUET_ROWS = 16
"""Rows that are decoded at a time: a dictionary's entry may stand in each of them."""
_BETWEEN = re.compile(r"[, \t\r\n]*")
FILE = Path(__file__).with_suffix(".yaml")

Count = Callable[[str], int]
"""The tokens of a text."""


class Shape(BaseModel):
    """Columns that say what is in a sample's sequence."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    columns: list[str]
    maybe: list[str] = []
    either: list[str] = []
    """Columns of which each ends a sequence of its own: a pair."""


class _Known(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    characters_per_token: Fact
    shapes: list[Shape]


@cache
def known() -> _Known:
    """The columns that are read, and the ratio of characters to tokens."""
    return validated(_Known, load_yaml(FILE), str(FILE))


@dataclass(frozen=True)
class Data:
    """What a file of samples says."""

    lengths: list[int]
    """Tokens of each sample, the longest last; of a pair those of the longer answer with the prompt."""
    columns: list[str]
    """What was counted."""
    counted: str
    """How text became tokens."""
    whole: bool
    """Whether all of the file was read."""

    def quantile(self, share: float) -> int:
        """The shortest length that so large a share of the samples does not exceed."""
        return self.lengths[max(0, ceil(len(self.lengths) * share) - 1)]


def read_data(path: str | Path, tokenizer: str | Path | None = None) -> Data:
    """Read a local file of samples. `tokenizer`: a tokenizer.json; without it a ratio of characters to tokens is taken.

    Raises `Unreadable` for a file that cannot be read, `InvalidValue` for samples without a column that is known.
    """
    where = Path(path)
    if not where.is_file():
        raise Unreadable("is no file: --data takes a local file of JSON lines, of a list in JSON, or Parquet", str(path)[:200])
    count, counted = _by_tokenizer(Path(tokenizer)) if tokenizer else (_by_ratio, _ratio_said())
    shape: Shape | None = None
    found: list[int] = []
    whole = True
    rows = _parquet(where) if where.suffix == ".parquet" else _json_list(where) if _is_list(where) else _json_lines(where)
    for number, row in enumerate(rows, 1):
        if row is None or number > MOST_ROWS:
            whole = False
            break
        shape = shape or _shape(row, str(path))
        if absent := next((name for name in shape.columns if name not in row), None):
            raise InvalidValue(f"has no {absent}, which the first sample has: write it in each", f"{str(path)[:200]}:{number}")
        found.append(_tokens(row, shape, count, f"{path}:{number}"))
    if shape is None:
        raise Unreadable("holds no sample", str(path))
    if shape.columns == ["input_ids"]:
        counted = "input_ids are counted as they are"
    return Data(sorted(found), [*shape.columns, *shape.maybe], counted, whole)


def _json_lines(path: Path) -> Iterator[Mapping[str, Any] | None]:
    """A row for each line that is not empty; None where more is there than is read."""
    size = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MOST_ROW + 1), b""), 1):
                size += len(line)
                if len(line) > MOST_ROW:
                    raise Unreadable(
                        f"line {number} has more than {MOST_ROW:,} bytes: write a sample a line (JSON lines)", str(path)
                    )
                if size > MOST_BYTES:
                    yield None
                    return
                if line.strip():
                    yield _row(line, f"{path}:{number}")
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror or error}", str(path)) from None


def _is_list(path: Path) -> bool:
    """Whether a file begins as a list in JSON."""
    try:
        with path.open("rb") as file:
            return file.read(BEGINNING).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror or error}", str(path)) from None


def _json_list(path: Path) -> Iterator[Mapping[str, Any] | None]:
    """The samples of a list, of which no more is held than one, and what was read with it; None where more is there than is
    read."""
    decoder, size, number = json.JSONDecoder(), 0, 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            text, at = file.read(CHUNK).lstrip(), 1
            while True:
                at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
                if text.startswith("]", at):
                    return
                try:
                    row, at = decoder.raw_decode(text, at)
                except (ValueError, RecursionError):
                    text, at = text[at:], 0
                    part = file.read(max(CHUNK, len(text))) if len(text) <= MOST_ROW else ""
                    if not part:
                        why = f"sample {number + 1} is no JSON, or has more than {MOST_ROW:,} letters"
                        raise Unreadable(why, str(path)) from None
                    text, size = text + part, size + len(part)
                    continue
                number += 1
                if not isinstance(row, Mapping):
                    raise Unreadable(f"is no mapping of columns but {type(row).__name__}", f"{path}:{number}")
                if size > MOST_BYTES:
                    yield None
                    return
                yield row
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"cannot be read: {error}"[:200], str(path)) from None


def _row(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise Unreadable("is no JSON: write a sample a line (JSON lines), or Parquet with the ending .parquet", where) from None
    if not isinstance(row, Mapping):
        raise Unreadable(f"is no mapping of columns but {type(row).__name__}", where)
    return row


def _parquet(path: Path) -> Iterator[Mapping[str, Any] | None]:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise Unreadable("is read by pyarrow, which is not here: pip install pyarrow, or write JSON lines", str(path)) from None
    if os.path.getsize(path) > MOST_BYTES:
        raise Unreadable(f"has more than {MOST_BYTES:,} bytes: give one of its parts", str(path))
    arrow = import_module("pyarrow")
    size = 0
    try:
        file = parquet.ParquetFile(path, memory_map=False)
        asked = {name for shape in known().shapes for name in (*shape.columns, *shape.maybe)}
        columns = [name for name in file.schema_arrow.names if name in asked]
        if not columns:
            raise _unknown(file.schema_arrow.names, str(path))
        for batch in file.iter_batches(PARQUET_ROWS, columns=columns, use_threads=False):
            size += batch.nbytes
            if size > 4 * MOST_BYTES:
                yield None
                return
            yield from batch.to_pylist()
    except (arrow.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        raise Unreadable(f"is no Parquet that can be read: {str(error)[:200]}", str(path)) from None


def _shape(row: Mapping[str, Any], where: str) -> Shape:
    for shape in known().shapes:
        if all(row.get(name) is not None for name in shape.columns):
            return shape
    raise _unknown(list(row), where)


def _unknown(names: list[Any], where: str) -> InvalidValue:
    there = ", ".join(str(name)[:40] for name in names[:12]) or "none"
    wanted = "; ".join(" + ".join(shape.columns) for shape in known().shapes)
    return InvalidValue(f"its columns are {there}: read are {wanted}", f"{where[:200]}")


def _tokens(row: Mapping[str, Any], shape: Shape, count: Count, where: str) -> int:
    """Tokens of a sample's sequence; of the longer one of a pair."""
    if shape.columns == ["input_ids"]:
        ids = row.get("input_ids")
        if not isinstance(ids, list):
            raise Unreadable("input_ids is no list", where)
        return len(ids)
    shared = sum(_of(row.get(name), count, where) for name in (*shape.columns, *shape.maybe) if name not in shape.either)
    return shared + max((_of(row.get(name), count, where) for name in shape.either), default=0)


def _of(value: Any, count: Count, where: str) -> int:
    """Tokens of all text in a column: a string, or turns with their roles, in whatever lists and mappings."""
    total, waiting, parts = 0, [value], 0
    while waiting:
        parts += 1
        if parts > MOST_PARTS:
            raise Unreadable(f"has more than {MOST_PARTS:,} parts in a column", where)
        one = waiting.pop()
        if isinstance(one, str):
            total += count(one)
        elif isinstance(one, Mapping):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
    return total


def _by_ratio(text: str) -> int:
    plain = len(text.encode("ascii", "ignore"))
    return -(-plain // int(known().characters_per_token.value)) + len(text) - plain


def _ratio_said() -> str:
    ratio = known().characters_per_token
    return (
        f"no tokenizer was given (--tokenizer tokenizer.json): {ratio.value:g} ASCII characters are taken for a token, and every "
        "other character for one; a chat template's own tokens are not counted"
    )


def _by_tokenizer(path: Path) -> tuple[Count, str]:
    try:
        tokenizers = import_module("tokenizers")
    except ImportError:
        raise Unreadable("is read by tokenizers, which is not here: pip install tokenizers", str(path)) from None
    if not path.is_file() or path.stat().st_size > TOKENIZER_BYTES:
        raise Unreadable(f"is no file of at most {TOKENIZER_BYTES:,} bytes: give a model's tokenizer.json", str(path)[:200])
    try:
        made = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise Unreadable(f"is no tokenizer.json: {str(error)[:200]}", str(path)) from None
    made.no_truncation()
    made.no_padding()
    return (
        lambda text: len(made.encode(text, add_special_tokens=False).ids),
        f"text is counted by {path.name}; a chat template's own tokens are not",
    )
