"""A few of the architectures that `python -m tests.architectures` draws: what comes of each."""

from __future__ import annotations

import random

import pytest

from tests.architectures import asked, config, types

pytestmark = pytest.mark.torch


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("arcee", "exact"),
        ("apertus", "exact"),
        ("albert", "counted"),
        ("bert", "counted"),
        ("mimo_v2_flash", "refused (invalid-value)"),
        ("prophetnet", "counted"),
        ("bamba", "exact"),
        ("zamba", "counted"),
        ("jetmoe", "exact"),
        ("longformer", "counted"),  # which asks whether a mask of ones has others
        ("musicgen", "refused (not-judged)"),
    ],
)
def test_an_architecture_is_answered_or_refused(kind: str, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WILLITFIT_CACHE", "")
    assert asked(kind, types()[kind], config(kind, random.Random(1)))[0] == outcome
