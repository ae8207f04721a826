"""A question that was written into the field of the model as it is spoken: will 13B fit on 2x24GB?"""

from __future__ import annotations

from itertools import pairwise

from estimator.cli.questions import asked as spoken

from .asked import Asked
from .spelled import HARDWARE

VIEWS = {"which": ("which", ("model",)), "models": ("models", ()), "max": ("limit", ("model", "field"))}
"""The page of what a command answers, and the fields that stand after the command."""


def in_words(view: str, given: Asked) -> tuple[str, Asked]:
    """The page and the fields that a question means; as they were where it is none, or the hardware has its own field."""
    question = given.get("model")
    if view or not question or any(given.get(name) for name in ("on", *HARDWARE)):
        return view, given
    words = spoken(question)
    if words is None:
        return view, given
    page, subjects = VIEWS.get(words[0], ("", ("model",)))
    said = zip(subjects, words[1:] if page else words, strict=False)
    fields = [(name.removeprefix("--"), value) for name, value in pairwise(words) if name.startswith("--") and name != "--fits"]
    return page, Asked([*said, *fields, *given.without("model")])
