"""Read a question: by its form, or where it has none of the usual ones by the names that are in it."""

from __future__ import annotations

import re
from dataclasses import replace

from estimator.questions.asked import Asked
from estimator.questions.details import LLAMA_CPP, TRAINS, details, for_training
from estimator.questions.shapes import shaped

LONGEST = 400
"""Characters of a question."""
ASKING = frozenset(
    {"how", "what", "what's", "which", "where", "who", "when", "why", "can", "could", "do", "does", "did", "will", "would"}
    | {"should", "is", "are", "i", "please", "help", "tell"}
)
"""Words with which questions begin, and no model's name does."""
_NOTHING = re.compile(
    r"(?<!\S)(please|pls|thanks|hi|hello|hey|tell me|locally)[,.!?]*(?!\S)|(?<=gpu)\(s\)|(?<=card)\(s\)", re.IGNORECASE
)
"""What says nothing of a question."""


def read(question: str, by_name: bool = True) -> Asked | None:
    """What a question asks; None if it is none that is understood, or longer than `LONGEST`.

    It is what its form says, if that is a usual one and the names that it has are known; else, with `by_name`, what the names in
    it say. Raises `InvalidJob` for words beside names that say nothing that is known.
    """
    if len(question) > LONGEST:
        return None
    text, kind, said = details(" ".join(_NOTHING.sub("", question).replace(" w/", " with ").split()).rstrip("?!,. "))
    found = shaped(text, said)
    if by_name:
        from estimator.questions.named import known, named  # names are loaded where there is a question, not for every command

        found = found if found is not None and known(found) else named(text, said) or found
    if found is None:
        return None
    if found.wants != "fit" and (engine := said.get("engine")):  # which the others do not ask for by its name
        if engine not in (LLAMA_CPP, "ollama"):
            return None
        rest = {name: value for name, value in found.details.items() if name != "engine"}
        found = replace(found, details={"task": "serve-gguf"} | rest)
    model = f"{found.model} {kind}" if kind and found.model else found.model
    return replace(found, model=model, details=for_training(found.details, TRAINS.search(text) is not None))
