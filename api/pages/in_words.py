"""A question that was written into the field of the model as it is spoken: will 13B fit on 2x24GB?"""

from __future__ import annotations

from estimator.questions.read import read

from .asked import Asked
from .spelled import HARDWARE

VIEWS = {"fit": "", "hardware": "which", "models": "models", "limit": "limit"}
"""The page that answers what is wanted."""


def in_words(view: str, given: Asked) -> tuple[str, Asked]:
    """The page and the fields that a question means; as they were where it is none, or the hardware has its own field. Raises
    `InvalidJob` for words that are not understood."""
    question = given.get("model")
    if view or not question or any(given.get(name) for name in ("on", *HARDWARE)):
        return view, given
    found = read(question)
    if found is None:
        return view, given
    named = [(name, value) for name, value in (("model", found.model), ("on", found.on), ("field", found.limited)) if value]
    way = "way" if found.limited else "task"  # of a job `serve` is no usual way, spread over all GPUs, but what it says
    details = [(way if name == "task" else name, value) for name, value in found.details.items()]
    return VIEWS[found.wants], Asked([*named, *details, *given.without("model")])
