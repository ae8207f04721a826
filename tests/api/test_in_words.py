"""A question that is written into the field of the model as it is spoken."""

from __future__ import annotations

import pytest

from api.pages.asked import Asked
from api.pages.in_words import in_words


@pytest.mark.parametrize(
    ("question", "page", "fields"),
    [
        ("will 13B fit on 2x24GB?", "", {"model": "13B", "on": "2x24GB"}),
        ("70B on 8xH100 for 20 users", "", {"model": "70B", "on": "8xH100", "concurrency": "20"}),
        ("qlora 13B on 24GB", "", {"model": "13B", "on": "24GB", "task": "qlora"}),
        ("what gpu do I need to fine-tune llama 3 8b", "which", {"model": "llama 3 8b", "task": "qlora"}),
        ("what models fit on 24GB", "models", {"on": "24GB"}),
        ("how long to train 8B on 8xH100 with 1B tokens", "", {"model": "8B", "on": "8xH100", "tokens": "1B"}),
        (
            "how many users can 8xH100 serve with llama 3.3 70b",
            "limit",
            {"model": "llama 3.3 70b", "field": "serving.concurrency", "way": "serve", "on": "8xH100"},
        ),
        (
            "how many users can 2xH100 serve with qwen3-32b at 8k context",
            "limit",
            {"model": "qwen3-32b", "field": "serving.concurrency", "way": "serve", "on": "2xH100", "context": "8k"},
        ),
        ("llama 3 8b", "", {"model": "llama 3 8b"}),
    ],
)
def test_it_is_the_page_that_it_means(question: str, page: str, fields: dict[str, str]) -> None:
    view, asked = in_words("", Asked([("model", question)]))
    assert (view, dict(asked.items)) == (page, fields)


def test_where_the_hardware_has_its_field_a_name_is_a_name() -> None:
    given = Asked([("model", "13B on 24GB"), ("on", "8xH100")])
    assert in_words("", given) == ("", given)
