"""A question by the names that are in it: of a model, of hardware, and beside them nothing but words that say what is asked."""

from __future__ import annotations

import re
from collections.abc import Callable

from estimator.contract.errors import InvalidJob, WillItFitError
from estimator.facts.spelling import shown
from estimator.hardware.parse import is_here, known_hardware
from estimator.questions.asked import BATCH, USERS, Asked, Details
from estimator.questions.details import TRAINS
from estimator.questions.shapes import HOW_TO_ASK, limited, method, place
from estimator.specs.resolve import is_name

MOST_WORDS = 8
"""Of a name."""
MOST_SAID = 30
"""Words of a question in which names are looked for: each run of them is tried as a name, which takes a while."""
HARDWARE = frozenset(
    {"gpu", "gpus", "card", "cards", "hardware", "vram", "memory", "machine", "ram", "gb", "graphics", "accelerator", "setup"}
)
MODELS = frozenset({"model", "models", "llm", "llms"})
PEOPLE = frozenset({"users", "people", "requests"})
SEEKS = HARDWARE | {"need", "needed", "required", "require", "requirements", "cheapest", "smallest", "minimum"}
SEEKS |= {"cost", "costs", "price", "rent", "buy"}
"""Words with which hardware is asked for, where none is named."""
_WORDS = frozenset(
    """
    a an the this that my our your i i've we we've you it it's one me us is are am be was will would can could should do
    does did may might has have had got want wants like going trying plan there how what what's whats which where if
    whether when why much many fast long big large small far good well better enough sufficient possible able any some
    just only still even also too and or of on in with for to at by from using use via per into under run runs
    running serve serves serving host hosting load loading fit fits fitting hold handle train trains training trained fine
    tune fine-tune fine-tuning finetune finetuning finetuned tuning pretrain pre-train pretraining scratch lora qlora full
    work works get take takes took best least most max maximum biggest largest inference local locally home speed
    throughput token tokens second tok/s t/s context batch 24/7 concurrent time hours hour money me then so but comfortably
    properly actually really please same way ways weights parameters params size deploy deployed deploying deployment
    production server single instance node box each per user
    """.split()  # noqa: SIM905
)
PLAIN = HARDWARE | MODELS | PEOPLE | SEEKS | _WORDS
"""Words of a question that are no name."""
_JOINING = re.compile("^(with|of|in|on) ", re.IGNORECASE)


def is_model(text: str) -> bool:
    """Whether a text names a model that is known, or may be several."""
    try:
        return is_name(text)
    except WillItFitError:
        return True


def is_hardware(text: str) -> bool:
    """Whether a text is hardware as it is read."""
    try:
        return is_here(text) or known_hardware(text) is not None
    except WillItFitError:
        return False


def known(found: Asked) -> bool:
    """Whether the names of a question are known."""
    return (not found.model or is_model(found.model)) and (not found.on or is_hardware(found.on))


def named(text: str, details: Details) -> Asked | None:
    """What a question asks that names a model, hardware, or both, with `details` that were said beside; None where it has words
    that are not understood, or more than `MOST_SAID`, but `InvalidJob` is raised where they are part of neither name."""
    words = [word.strip("?!,.;:()\"'") for word in text.split()]
    if len(words) > MOST_SAID:
        return None
    model, before, after = _longest(words, is_model)
    sides = [_longest(side, is_hardware) for side in (after, before)]
    best = max(sides, key=lambda side: len(side[0].split()))
    on, left, right = best
    rest = [*left, *right, *(before if best is sides[0] else after)]
    if strange := [word for word in rest if word.lower() not in PLAIN]:
        if model and on and all(word.lower() in PLAIN for word in (*before[-1:], *after[:1])):
            listed = ", ".join(map(shown, strange))
            raise InvalidJob(f"not understood beside {model!r} and {on!r}: {listed}. {HOW_TO_ASK}", "question")
        return None
    return _asked(model, place(_JOINING.sub("", on)), frozenset(map(str.lower, rest)), " ".join(rest), details)


def _asked(model: str, on: str, said: frozenset[str], rest: str, details: Details) -> Asked | None:
    """What is asked of a model and hardware, of which one may be empty, by the words beside."""
    if model and on and {"how", "many"} <= said and not said.isdisjoint(PEOPLE):
        return Asked("limit", model, on, limited(details), USERS)
    if model and on and "batch" in said and not said.isdisjoint({"max", "maximum", "largest", "biggest", "what", "which"}):
        return Asked("limit", model, on, _method(rest, "qlora") | details, BATCH)
    if model and on:
        return Asked("fit", model, on, details)
    if on and not said.isdisjoint(MODELS | {"what", "which"}):
        return Asked("models", on=on, details=_method(rest) | details)
    if model and not said.isdisjoint(SEEKS):
        return Asked("hardware", model, details=_method(rest) | details)
    return None


def _method(rest: str, usual: str = "") -> Details:
    """The way of training that the words beside the names mean, else the `usual` one, if there is one."""
    train = TRAINS.search(rest)
    return method(train[0] if train else usual)


def _longest(words: list[str], names: Callable[[str], bool]) -> tuple[str, list[str], list[str]]:
    """The most words in a row that name something, the first of several, and what stands before and after; else the empty text
    and all of them before."""
    tried: set[str] = set()
    for count in range(min(MOST_WORDS, len(words)), 0, -1):
        for start in range(len(words) - count + 1):
            inside = words[start : start + count]
            text = " ".join(inside)
            if text in tried or all(word.lower() in PLAIN for word in inside):
                continue
            if names(text):
                return text, words[:start], words[start + count :]
            tried.add(text)
    return "", words, []
