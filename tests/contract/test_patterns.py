"""Patterns of names: what Python's own engine says of a name, in time that no pattern can stretch."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.contract.patterns import fits_whole, understood

ATOMS = st.sampled_from(["q", "u", ".", r"\.", "[a-q]", "[^u]", r"\d", r"\w"])
TIMES = st.sampled_from(["", "", "*", "+", "?", "{1,2}", "*?"])


def _several(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(inner, min_size=1, max_size=3).map("".join)


REPEATED = st.builds("{}{}".format, ATOMS, TIMES)
GROUPS = st.builds("({}{}|{}){}".format, st.sampled_from(["", "?:"]), _several(REPEATED), _several(REPEATED), TIMES)
PARTS = _several(st.one_of(REPEATED, GROUPS))
AHEAD = st.builds("({}{})".format, st.sampled_from(["?!", "?="]), PARTS)
PATTERNS = st.builds(
    "{}{}{}{}".format, st.sampled_from(["", "^"]), st.one_of(st.just(""), AHEAD), PARTS, st.sampled_from(["", "$"])
)
NAMES = st.text("qu.1", max_size=7)


@pytest.mark.slow
@given(PATTERNS, NAMES)
def test_it_says_what_python_says(pattern: str, name: str) -> None:
    assert fits_whole(pattern, name) == (re.fullmatch(pattern, name) is not None)


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        (r".*\.(q|k|v)_proj", "model.layers.0.self_attn.q_proj", True),
        (r"^(?!.*vision).*\.(?:q_proj|up_proj)$", "model.vision.layers.0.q_proj", False),
        (r"^(?!.*vision).*\.(?:q_proj|up_proj)$", "model.layers.0.q_proj", True),
        (r"^(?!lm_head[.)])(?=model).*", "model.layers.0", True),
        (r"^^q$$", "q", True),
        (r"(^|.*\.)wte($|\..*)", "transformer.wte", True),
        (r"(^|.*\.)wte($|\..*)", "transformer.wtes", False),
    ],
)
def test_patterns_of_adapters(pattern: str, name: str, fits: bool) -> None:
    assert fits_whole(pattern, name) is fits


@pytest.mark.parametrize("pattern", ["(.*.*.*.*.*.*.*)*x$", "(a*)*b", "((a|a)+)+c", "(.{1,9}){1,9}!"])
def test_no_pattern_takes_long(pattern: str) -> None:
    """Python's engine is at the first for longer than anyone waits."""
    assert not fits_whole(pattern, "a" * 200)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(c_attn", "not closed"),
        ("a)", "closes nothing"),
        ("a(?=b)", "looks ahead"),
        (r"(a)\1", r"\1"),
        (r"\bq", r"\b"),
        ("(((a{90}){90}){90}){90}", "repeats too much"),
        ("a" * 501, "too long"),
        ("(?!a", "not closed"),
        ("*", "after nothing"),
    ],
)
def test_what_is_not_understood_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        understood(pattern)
