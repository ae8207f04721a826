"""A strategy is one value: what depends on it asks the value's fields, and no module compares names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

import estimator
from estimator import Job, NotModelled, estimate
from estimator.contract.job import Parallelism
from estimator.parallel.strategies import STRATEGIES, Feature, strategy_of

ROOM = Path(estimator.__file__).parent
WITH_NAMES_OF_THEIR_OWN = ("exchange", "verify")
"""Rooms that speak another program's language, or play its strategy by themselves."""
COMPARED = re.compile(
    r"""(?<!select_)(?<!combination_)strategy\s*(==|!=|in|not in)\s*[(\[]?["']|strategy( or "")?\)?\.startswith"""
)


def compared(text: str) -> list[str]:
    """Lines that compare a strategy's name."""
    return [line.strip() for line in text.splitlines() if COMPARED.search(line)]


def test_no_module_compares_names() -> None:
    rooms = {path: path.relative_to(ROOM).parts[0] for path in ROOM.rglob("*.py")}
    texts = {str(path): path.read_text(encoding="utf-8") for path, room in rooms.items() if room not in WITH_NAMES_OF_THEIR_OWN}
    assert {name: compared(text) for name, text in texts.items() if compared(text)} == {}


@pytest.mark.parametrize("line", ['if strategy == "ddp":', 'if strategy not in ("none", "ddp"):', 'strategy.startswith("zero")'])
def test_the_test_can_fail(line: str) -> None:
    assert compared(line)


def test_the_table_has_what_a_job_may_name() -> None:
    named = get_args(get_args(Parallelism.model_fields["strategy"].annotation)[0])
    assert tuple(STRATEGIES) == named
    assert all(name == one.name for name, one in STRATEGIES.items())


def test_every_feature_is_of_some_strategies_and_not_of_all() -> None:
    for feature in get_args(Feature):
        having = [one.name for one in STRATEGIES.values() if feature in one.models]
        assert 0 < len(having) < len(STRATEGIES), feature


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_answer_says_how_ranks_share_the_model(name: str) -> None:
    parallelism = {"strategy": name, **({"replicas": 2} if name == "hsdp" else {})}
    answer = estimate({"model": "gpt2", "hardware": {"gpus": 1 if name == "none" else 4}, "parallelism": parallelism})
    settled = Job.model_validate(answer.job)
    assert strategy_of(settled).name == name
    for sentence in strategy_of(settled).says(settled, 1 if name == "none" else 4):
        assert sentence in answer.assumptions


def test_what_a_strategy_does_not_model_is_refused() -> None:
    settings: dict[str, dict[str, Any]] = {
        "kept_gradients": {"zero_grad_to_none": False},
        "reentrant_checkpointing": {"reentrant_checkpointing": True},
        "evaluation": {"evaluation": {}},
        "objectives": {"objective": {"type": "orpo"}},
        "checkpoints_of_parts": {"activation_checkpointing": "selective"},
        "checkpoints_of_segments": {"activation_checkpointing": "sqrt"},
    }
    for feature, asked in settings.items():
        for name, one in STRATEGIES.items():
            if name in ("none", "hsdp"):
                continue
            job = {"model": "gpt2", "hardware": {"gpus": 4}, "parallelism": {"strategy": name}, "training": asked}
            if feature in one.models:
                estimate(job)
            else:
                with pytest.raises(NotModelled):
                    estimate(job)
