"""What a program can tell of an error: its kind, its code, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimator import InvalidJob, NotModelled, UnknownName, WillItFitError, estimate
from estimator.contract.errors import (
    Contradiction,
    InvalidValue,
    UnknownArchitecture,
    UnknownHardware,
    UnknownKey,
    UnknownModel,
    Unreadable,
)

CASES: list[tuple[Any, type[WillItFitError], type[WillItFitError], str]] = [
    ({"model": "gpt2", "trainning": {}}, InvalidJob, UnknownKey, ""),
    ({"model": "gpt2", "a[0]": 1}, InvalidJob, UnknownKey, ""),
    ({"model": "gpt2", "training": {"str": 1}}, InvalidJob, UnknownKey, ""),
    ({"model": "gpt2", "training": {"micro_batch_size": 0}}, InvalidJob, InvalidValue, ""),
    ({"model": "gpt2", "training": {"optimiser": "sgd", "micro_batch_size": 0}}, InvalidJob, InvalidValue, ""),
    ({"model": "gpt2", "hardware": {"memory": "much"}}, InvalidJob, InvalidValue, ""),
    ({"model": "gpt2", "hardware": {"gpus": 2}, "parallelism": {"data": 3}}, InvalidJob, Contradiction, "parallelism"),
    ({"model": "gpt2", "training": {"sequence_length": 2048}}, InvalidJob, Contradiction, "training.sequence_length"),
    (Path("nothing.yaml"), InvalidJob, Unreadable, "nothing.yaml"),
    ({"model": {"model_type": "gpt9"}}, NotModelled, UnknownArchitecture, "model"),
    ({"model": "gpt9"}, UnknownName, UnknownModel, ""),
    ({"model": "gpt2", "hardware": {"gpu": "rtx-4900"}}, UnknownName, UnknownHardware, ""),
]


@pytest.mark.parametrize(("asked", "kind", "exactly", "where"), CASES)
def test_an_error_says_what_it_is(asked: Any, kind: type[WillItFitError], exactly: type[WillItFitError], where: str) -> None:
    with pytest.raises(kind) as refused:
        estimate(asked)
    assert type(refused.value) is exactly
    assert refused.value.where == where


def test_no_two_errors_share_a_code() -> None:
    kinds = [kind for parent in WillItFitError.__subclasses__() for kind in (parent, *parent.__subclasses__())]
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(one.slug == parent.slug for parent in WillItFitError.__subclasses__() for one in parent.__subclasses__())
