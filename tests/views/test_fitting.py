"""Which models fit: beside the headline asked of each, in order, and none that is not known is left out as if it did not."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from api.app import app
from estimator import InvalidJob, UnknownName, WillItFitError, estimate, fit, fitting
from estimator.cli.main import main
from estimator.contract.rows import Fitting
from estimator.views.listing import models


@pytest.fixture(scope="module")
def served() -> Fitting:
    return fitting("24GB", search="qwen3", top=1000)


def test_every_model_is_somewhere(served: Fitting) -> None:
    named = [row.name for row in served.rows]
    named += [*served.too_large, *served.too_short, *(name for one in served.unknown for name in one.models)]
    assert sorted(named) == sorted(row["name"] for row in models("qwen3"))
    assert served.looked_at == served.known == len(named)


@pytest.mark.slow
def test_a_row_is_the_first_way_that_the_headline_says_fits(served: Fitting) -> None:
    for row in served.rows[::40]:
        ways = [way for way in fit(row.name, "24GB").rows if way.way.startswith("serve")]
        first = next(way for way in ways if way.fits)
        assert (row.way, row.total_bytes, row.longest_context) == (first.way, first.total_bytes, first.longest_context)
        assert estimate(row.job).memory.total_bytes == row.total_bytes
    for name in served.too_large[:1]:
        assert not any(way.fits for way in fit(name, "24GB").rows if way.way.startswith("serve"))


def test_the_newest_come_first_and_of_a_day_the_largest(served: Fitting) -> None:
    keys = [(row.released or "", row.parameters) for row in served.rows]
    assert keys == sorted(keys, reverse=True)


def test_it_ends_with_as_many_as_were_asked_for(served: Fitting) -> None:
    few = fitting("24GB", search="qwen3", top=3)
    assert [row.name for row in few.rows] == [row.name for row in served.rows[:3]]
    assert few.looked_at < served.looked_at
    assert few.complete


def test_a_named_card_says_how_fast() -> None:
    row = fitting("rtx-4090", search="llama-3-8b").rows[0]
    assert row.tokens_per_second == (estimate(row.job).time or pytest.fail("no time")).tokens_per_second


def test_training_and_what_is_not_known() -> None:
    found = fitting("rtx-4090", "qlora", search="molmo2")
    assert not found.rows
    assert not found.too_large
    assert {one.verdict for one in found.unknown} == {"unknown"}
    assert fitting("2x24GB", "qlora", search="llama-3-8b").rows[0].spread == "ddp x2"
    assert fitting("m3-max-64gb", "qlora", search="llama-3-8b").unknown


def test_models_that_were_made_for_fewer_tokens_are_said_to_be() -> None:
    found = fitting("24GB", search="gpt2", context=2048)
    assert {"gpt2", "gpt2-xl"} <= {*found.too_short}
    assert not {row.name for row in found.rows} & {*found.too_short}


def test_an_interrupt_keeps_what_was_found() -> None:
    def watch(looked_at: int) -> None:
        if looked_at == 2:
            raise KeyboardInterrupt

    found = fitting("24GB", search="qwen3", watch=watch)
    assert not found.complete
    assert found.looked_at == 2


def test_every_door_gives_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    expected = fitting("24GB", "serve-4bit", search="llama 8b", top=2, context=8192).to_json()
    words = ["models", "llama", "8b", "--fits", "--on", "24GB", "--task", "serve-4bit", "--context", "8192", "--top", "2"]
    assert main([*words, "--json"]) == 0
    assert capsys.readouterr().out == expected
    query: dict[str, str | int] = {"on": "24GB", "task": "serve-4bit", "search": "llama 8b", "context": 8192, "top": 2}
    assert TestClient(app).get("/v1/fitting", params=query).text == expected
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "serve 4-bit (AWQ)" in text
    assert "newest of" in text


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["models", "--fits"], 2, "needs hardware: write --on here"),
        (["models", "--on", "24GB"], 2, "is of --fits"),
        (["models", "--fits", "--on", "24GB", "--task", "qlora", "--context", "8k"], 2, "say the sequence"),
        (["models", "--fits", "--on", "24GB", "--task", "chat"], 2, "is no task; write serve"),
        (["models", "--fits", "--on", "rtx-4091"], 3, "rtx-4090"),
        (["models", "nonesuch", "--fits", "--on", "24GB"], 3, "nonesuch"),
    ],
    ids=str,
)
def test_a_bad_command_is_refused(words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err


def test_a_bad_question_is_refused() -> None:
    for on, task in (("", "serve"), ("here", "serve"), ("24GB", "serving")):
        with pytest.raises(InvalidJob):
            fitting(on, task)
    with pytest.raises(UnknownName):
        fitting("24GB", search="no such model")
    with pytest.raises(WillItFitError):
        fitting("24GB", context=-1)
