"""Files of strangers: bounded before they are expanded, and refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimator import InvalidJob
from estimator.contract.reading import MOST_BYTES, parse_json, parse_toml, parse_yaml, read_text

NINES = "a: &a [x, x, x, x, x, x, x, x, x]\n"
BOMB = NINES + "".join(f"{c}: &{c} [{', '.join(['*' + p] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True))
MERGED = "m0: &m0 {k: 1}\n" + "".join(f"m{i}: &m{i} {{<<: [*m{i - 1}, *m{i - 1}]}}\n" for i in range(1, 40))
HOSTILE = [
    (parse_yaml, "[" * 100_000, "nested too deeply"),
    (parse_yaml, "{a: " * 100_000, "nested too deeply"),
    (parse_yaml, "- " * 100_000, "nested too deeply"),
    (parse_yaml, "? " * 100_000, "nested too deeply"),
    (parse_yaml, BOMB, "its aliases stand for"),
    (parse_yaml, MERGED, "its aliases stand for"),
    (parse_yaml, "a: &a [*a]", "within what it stands for"),
    (parse_yaml, "- a\n" * 60_000, "more than 50,000 values"),
    (parse_yaml, "a: " + "9" * 10_000, "more than a hundred digits"),
    (parse_yaml, "a: " + ":".join(["1"] * 1_000), "more than a hundred digits"),
    (parse_yaml, "a: 0x" + "f" * 10_000, "more than a hundred digits"),
    (parse_yaml, "a: 2026-99-99", "not valid YAML"),
    (parse_yaml, "!!python/object/apply:os.system [ls]", "has a tag"),
    (parse_yaml, "a: !!int ''", "has a tag"),
    (parse_yaml, "? [a]\n: b", "unhashable key"),
    (parse_json, "[" * 100_000, "more than 50,000 values"),
    (parse_json, '{"a":' * 20_000, "nested too deeply"),
    (parse_json, "9" * 10_000, "not JSON"),
    (parse_json, '"\\ud800"', "half a surrogate pair"),
    (parse_toml, "a" + ".a" * 60_000 + " = 1", "parts"),
    (parse_toml, "a = " + "[" * 50_000, "nested too deeply"),
    (parse_toml, "a = 0x" + "f" * 10_000, "more than a hundred digits"),
    (parse_toml, "a = 1\n" * 30_000, "more than 131,072 characters"),
    (parse_toml, "a = 1979-99-99", "not TOML"),
]


@pytest.mark.parametrize(("parse", "text", "said"), HOSTILE, ids=lambda given: given[:12] if isinstance(given, str) else None)
def test_what_would_be_expanded_is_refused(parse: Callable[[str, str], Any], text: str, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        parse(text, "file")


def test_aliases_of_ordinary_size_are_read() -> None:
    assert parse_yaml("a: &x {k: [1, 2]}\nb: *x\nc: {<<: *x, d: 3}", "file")["c"] == {"k": [1, 2], "d": 3}


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\xff\xfe", "not text in UTF-8"), (b"a\0b", "zero bytes"), (b"x" * (MOST_BYTES + 1), "more than 1,048,576 bytes")],
)
def test_what_is_no_text(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InvalidJob, match=said):
        read_text(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/", "/no/such/file", "a\0b"])
def test_what_is_no_file(path: str) -> None:
    with pytest.raises(InvalidJob):
        read_text(Path(path))
