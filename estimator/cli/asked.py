"""A question as it is spoken, as the arguments that mean it."""

from __future__ import annotations

import os

from estimator.cli.commands import COMMANDS
from estimator.questions.asked import Asked
from estimator.questions.read import read

SPOKEN = ("which", "max", "min", "serve", "models", "plan")
"""Commands with whose names questions begin, too."""
FEW = 3
"""Words of a command that is no question."""


def spoken(arguments: list[str]) -> list[str]:
    """Arguments that are a question (will 13B fit on 2x24GB, qlora 13B on 24GB, which GPU for 13B) as what it stands for."""
    first = next((place for place, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    words = " ".join(arguments[:first])
    if not words or "--on" in arguments or os.path.exists(words):
        return arguments
    found = read(words, by_name=arguments[0] not in COMMANDS or (arguments[0] in SPOKEN and first > FEW))
    return arguments if found is None else [*written(found), *arguments[first:]]


def written(found: Asked) -> list[str]:
    """The arguments that a question stands for."""
    details = [part for name, value in found.details.items() for part in (f"--{name}", value)]
    where = ["--on", found.on]
    match found.wants:
        case "models":
            return ["models", "--fits", *where, *details]
        case "limit":
            return ["max", found.model, found.limited, *where, *details]
        case "hardware":
            return ["which", found.model, *details]
        case "fit":
            return [found.model, *where, *details]
