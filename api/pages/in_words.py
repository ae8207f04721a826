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
    page, names = VIEWS.get(words[0], ("", ("model",)))
    said = zip(names, words[1:] if page else words, strict=False)
    task = "way" if page == "limit" else "task"  # of a job `serve` is no usual way, spread over all GPUs, but what it says
    options = [(name.removeprefix("--"), value) for name, value in pairwise(words) if name.startswith("--") and name != "--fits"]
    options = [(task if name == "task" else name, value) for name, value in options]
    return page, Asked([*said, *options, *given.without("model")])
