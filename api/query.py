"""A job in an address: its fields by their dotted names, and `on` for the hardware.

model=llama-2-13b&on=2x24GB&training.precision=bf16-true&training.adapter.rank=16
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Job
from estimator.hardware.parse import read_hardware

NAMES = ("training.adapter.targets", "training.adapter.exclude", "training.adapter.feedforward", "training.pruning.targets")
"""Fields that are a pattern, or several names with commas between: a pattern has a character that no name has."""
LISTS = (
    "training.adapter.layers",
    "training.adapter.modules_to_save",
    "training.activation_checkpointing.modules",
    "training.trainable.names",
    "training.unquantized",
    "training.lengths",
    "serving.unquantized",
    "serving.tensor_split",
    "serving.override_tensor",
)
"""Fields whose value is several, with commas between; in JSON, where one has a comma or is no single value."""
PARTS = "serving.mixed_weights."
"""What the fields begin with whose last name is a type of weights, and whose value is likewise several."""
PATTERN = frozenset("*|()[]^$+?\\")


def job_mapping(items: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The job that the items of a query string say. Empty values count as not given."""
    job: dict[str, Any] = {}
    for name, value in items:
        text = value.strip()
        if not text:
            continue
        if name == "on":
            job["hardware"] = read_hardware(text).hardware.model_dump(exclude_defaults=True)
            continue
        *path, last = name.split(".")
        part = job
        for step in path:
            part = part.setdefault(step, {})
            if not isinstance(part, dict):
                raise InvalidJob(f"{name} does not go with {step}={part}", name)
        if isinstance(part.get(last), dict):
            raise InvalidJob(f"{name}={text} does not go with {name}.…", name)
        part[last] = _value(name, text)
    return job


def _value(name: str, text: str) -> Any:
    several = name in LISTS or name.startswith(PARTS)
    if text.startswith("[") and (several or name in NAMES):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    if several or (name in NAMES and text != "all-linear" and not PATTERN & {*text}):
        return text.split(",")
    return text


def job_query(job: Mapping[str, Any]) -> dict[str, str]:
    """The other way: the fields of a whole job that differ from the defaults, by their dotted names."""
    items, defaults = job_fields(job), job_fields(Job(model="").model_dump(mode="json"))
    return {name: value for name, value in items.items() if name == "task" or value != defaults.get(name)}


def job_fields(job: Mapping[str, Any]) -> dict[str, str]:
    """Every field of a job that has a value, by its dotted name."""
    return dict(_flattened(job))


def _flattened(part: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", _as_text(value)


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        plain = all(not isinstance(one, Mapping | list) and "," not in str(one) for one in value)
        return ",".join(map(str, value)) if plain else json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
