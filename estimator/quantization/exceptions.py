"""The layers that a quantized checkpoint's config leaves as they are, as parts of layers' names (`families.build.within`).

Configs list them by name, by names with `*` (ModelOpt's `exclude_modules`, matched as vllm/model_executor/layers/quantization/
modelopt.py does), or by expressions that begin with `re:` (compressed-tensors' `ignore`); layer by layer, or for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product

_LAYER = re.compile(r"(?:(?:model|language_model|text_model|transformer|backbone)\.)*(?:layers|h)\.(\d+|\*)(?:\.(.*))?")
"""A name within one layer of the language model: its number and the rest."""
_CHOICE = re.compile(r"\(([\w|]+)\)")
_PLAIN = re.compile(r"[\w.]+")
NEVER = ("gate", "router", "conv1d", "e_score_correction_bias", "shared_expert_gate")
"""What is quantized nowhere, beside norms: said of layers one by one, it says nothing."""


def excepted(patterns: Iterable[object], layers: int | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parts of names, in the order in which they come first, and the patterns that could not be read.

    What all of so many `layers` except, but for those that are excepted as a whole, comes once; `layers.3.mlp` is of one layer.
    """
    found: dict[str, set[int]] = {}
    everywhere: dict[str, None] = {}
    entire: set[int] = set()
    unread = []
    for pattern in map(str, patterns):
        plain = list(_plain(pattern))
        if not plain:
            unread.append(pattern)
        for name in plain:
            inner = _LAYER.fullmatch(name)
            if inner is None:
                everywhere[name] = None
            elif inner[1] == "*":
                everywhere[inner[2] or ""] = None
            elif inner[2] and ("norm" in inner[2] or inner[2].rpartition(".")[2] in NEVER):
                continue
            elif inner[2]:
                found.setdefault(inner[2], set()).add(int(inner[1]))
            else:
                entire.add(int(inner[1]))
    parts = [name for name in everywhere if name]
    for part, numbers in found.items():
        if layers is not None and numbers | entire >= set(range(layers)):
            parts.append(part)
        else:
            parts += [f"layers.{number}.{part}" for number in sorted(numbers) if layers is None or number < layers]
    parts += [f"layers.{number}" for number in sorted(entire) if layers is None or number < layers]
    return tuple(dict.fromkeys(parts)), tuple(unread)


def _plain(pattern: str) -> Iterator[str]:
    """The names that a pattern stands for, without what it begins and ends with; none where it cannot be said so."""
    if pattern.startswith("re:"):
        pattern = pattern[3:].removeprefix("^").removesuffix("$").replace("\\.", ".")
        pattern = _trimmed(pattern, ".*")
    else:
        pattern = _trimmed(pattern, "*")
    choices = [choice.split("|") for choice in _CHOICE.findall(pattern)]
    for chosen in product(*choices):
        name = pattern.strip(".")
        for choice in chosen:
            name = _CHOICE.sub(choice, name, count=1)
        if _PLAIN.fullmatch(name.replace(".*", "")):
            yield name


def _trimmed(pattern: str, any_text: str) -> str:
    return pattern.removeprefix(any_text).removesuffix(any_text)
