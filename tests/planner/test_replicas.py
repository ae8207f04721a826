"""How many copies bear a load."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from estimator import InvalidJob, NotModelled, WillItFitError, estimate, replicas
from estimator.planner import amounts
from estimator.planner.replicas_answer import Replicas

DAY = date(2026, 11, 23)
ASKED: dict[str, Any] = {"prompt": 1000, "output": 200, "on": "8xH100", "today": DAY}


def asked(requests: float, **given: Any) -> Replicas:
    return replicas("llama-3.1-8b", requests, **{**ASKED, **given})


def test_a_copy_answers_as_the_estimate_says() -> None:
    """Its job has room, and bears what it is said to."""
    row = asked(10, tpot=0.03).rows[0]
    serving = estimate(row.job).serving
    assert serving is not None
    assert serving.time_per_output_token_seconds == pytest.approx(row.time_per_output_token_seconds)
    assert serving.requests_per_second * row.replicas >= 10
    assert row.time_to_first_token_seconds > serving.time_to_first_token_seconds
    assert row.range_replicas[0] <= row.replicas <= row.range_replicas[1]


def test_guesses_that_are_accepted_make_a_copy_bear_more() -> None:
    """And without it being known how many are, a step writes one token and guessing only takes time."""
    guessing = {"weights": "fp8", "speculative_config": {"model": "llama-3.2-1b", "num_speculative_tokens": 4}}
    borne = []
    for serving in ({"weights": "fp8"}, guessing, guessing | {"speculative_acceptance": 0.8}):
        job = {"model": "llama-3.1-70b", "task": "serve", "serving": serving}
        borne.append(replicas(job, 2, tpot=0.04, **{**ASKED, "on": "4xH100"}).rows[0].most_requests_per_second)
    plain, blind, accepted = borne
    assert blind < plain < accepted


@pytest.mark.slow
def test_more_requests_take_more_copies() -> None:
    counts = [min(row.total_gpus for row in asked(rate, on="16xL40S", tpot=0.05).rows) for rate in (1, 10, 30)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.slow
def test_tighter_limits_take_no_fewer() -> None:
    loose, tight = (asked(20, on="16xL40S", tpot=tpot).rows for tpot in (0.1, 0.03))
    for row in tight:
        same = [other for other in loose if other.gpus == row.gpus]
        assert not same or same[0].replicas <= row.replicas
        assert row.time_per_output_token_seconds <= 0.03


def test_the_first_token_waits_for_the_prompts_before_it() -> None:
    """At a higher load of the same copies it comes later."""
    slow, fast = (asked(rate, on="1xH100").rows[0].time_to_first_token_seconds for rate in (18, 2))
    assert slow > fast


def test_more_gpus_than_are_there() -> None:
    found = asked(10_000, on="1xH100")
    assert found.possible is False
    assert "are there" in found.reason


def test_a_limit_that_nothing_keeps() -> None:
    found = asked(1, tpot=0.0001)
    assert found.possible is False
    assert "even with one sequence" in found.reason


def test_the_cheapest_comes_first() -> None:
    """Of the same hardware at hand, two ways to divide it."""
    prices = [float(row.price_per_hour.replace(",", "")) for row in asked(40, tpot=0.02).rows if row.price_per_hour]
    assert prices == sorted(prices)


@pytest.mark.parametrize(
    ("model", "requests", "given", "says"),
    [
        ("llama-3.1-8b", 0, {}, "above 0"),
        ("llama-3.1-8b", float("nan"), {}, "above 0"),
        ("llama-3.1-8b", 1, {"ttft": -1}, "above 0"),
        ("llama-3.1-8b", 1, {"prompt": 0}, "number of tokens"),
        ("llama-3.1-8b", 1, {"prompt": 2**23, "output": 2**24 + 1}, "number of tokens"),
        ({"model": "gpt2", "task": "train"}, 1, {}, "task: serve"),
        ("llama-9.9-8b", 1, {}, "llama-9.9-8b"),
    ],
)
def test_what_is_refused(model: Any, requests: float, given: dict[str, Any], says: str) -> None:
    with pytest.raises(WillItFitError, match=says):
        replicas(model, requests, **{**ASKED, **given})


def test_vectors_have_no_time_yet() -> None:
    with pytest.raises(NotModelled, match="vectors"):
        replicas("bge-large-zh", 1, on="1xH100")


@pytest.mark.parametrize(
    ("text", "value"), [("10", 10), ("0.5/s", 0.5), ("600/min", 10), ("5 per second", 5), ("3 rps", 3), ("7200 requests/hour", 2)]
)
def test_rates_as_people_write_them(text: str, value: float) -> None:
    assert amounts.rate(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["five", "", "10/fortnight", "0", "-3"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(InvalidJob, match="600/min"):
        amounts.rate(text)


@pytest.mark.parametrize(("text", "value"), [("500ms", 0.5), ("2s", 2), ("1.5 sec", 1.5), ("30 MS", 0.03)])
def test_seconds_as_people_write_them(text: str, value: float) -> None:
    assert amounts.seconds(text, "ttft") == pytest.approx(value)


@pytest.mark.parametrize("text", ["20", "soon", "2h", "0ms"])
def test_what_are_no_seconds(text: str) -> None:
    with pytest.raises(InvalidJob, match="500ms"):
        amounts.seconds(text, "tpot")
