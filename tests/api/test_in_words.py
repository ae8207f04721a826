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
            "how many users can a 4090 serve with 8B",
            "limit",
            {"model": "8B", "field": "serving.concurrency", "task": "serve", "on": "a 4090"},
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
