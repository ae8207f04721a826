"""A Hugging Face config.json as a spec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimator.contract.errors import InvalidJob, NotModelled, did_you_mean
from estimator.contract.validation import validated
from estimator.families import FAMILIES, spec_class
from estimator.families.spec import ModelSpec
from estimator.quantization.config import named

SAME = {"kimi_k2": "deepseek_v3"}
"""Types that transformers has no classes for, each with the one whose classes its checkpoints are of."""


def read_config(path: Path) -> dict[str, Any]:
    """A config.json on disk; `InvalidJob` says what is wrong with a file that is not one."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidJob(f"cannot be read: {error.strerror}", str(path)) from None
    except UnicodeDecodeError:
        raise InvalidJob("is not text in UTF-8; give a model's config.json", str(path)) from None
    except json.JSONDecodeError as error:
        raise InvalidJob(f"is not JSON (line {error.lineno}: {error.msg}); give a model's config.json", str(path)) from None
    except RecursionError:
        raise InvalidJob("is nested too deeply for a config.json", str(path)) from None
    if not isinstance(config, dict):
        raise InvalidJob("holds no JSON object; give a model's config.json", str(path))
    return config


def quantized_as(given: Mapping[str, Any]) -> tuple[str, ...]:
    """What to say of a config.json whose checkpoint is quantized: weights are counted in a job's types, whatever it says."""
    asked = given.get("quantization_config")
    if not isinstance(asked, Mapping):
        return ()
    method = str(asked.get("quant_method", "some method"))
    bits = asked.get("bits") or (4 if asked.get("load_in_4bit") else 8 if asked.get("load_in_8bit") else None)
    group = asked.get("group_size")
    said = " ".join(
        [
            method,
            *([f"{bits} bits"] if bits else []),
            *([f"in groups of {group}"] if isinstance(group, int) and group > 0 else []),
        ]
    )
    known = named(asked)
    if known is None:
        advice = "no format here has its name"
    else:
        chosen = "" if known.group is None else f", in groups of {known.group}"
        kept = "" if not known.whole else f", but for {', '.join(known.whole)}"
        advice = f"to count it, name {known.name}{chosen}{kept} in training.quantization or serving.weights"
    return (f"its config.json says that the checkpoint is quantized ({said}); weights are counted in the job's types: {advice}",)


def from_mapping(given: Mapping[str, Any], where: str) -> ModelSpec:
    """The spec of a config's mapping: what the family does not know is left out, what it has no model of is refused.

    What is a spec already, and no more, keeps to the spec's own rules.
    """
    kind = given.get("model_type")
    if isinstance(kind, str) and kind in SAME:
        kind = SAME[kind]
        given = {**given, "model_type": kind}
    if kind is None:
        raise InvalidJob(f"has no model_type; a model's config.json names one of {', '.join(FAMILIES)}", where)
    if not isinstance(kind, str) or kind not in FAMILIES:
        near = did_you_mean(str(kind), FAMILIES)
        raise NotModelled(
            f"model_type {kind!r} is not modelled yet; known are {', '.join(FAMILIES)}.{near} "
            "CONTRIBUTING.md says how to add a family; a model of the same operations can be given under a known model_type.",
            where,
        )
    family = spec_class(kind)
    for name, values in family.modelled.items():
        if name in given and given[name] not in values:
            known = " and ".join(map(repr, values))
            raise NotModelled(f"{name} {given[name]!r} is not modelled for {kind} yet; {known} is", where)
    keys = family.keys()
    return validated(family, {name: value for name, value in given.items() if name in keys}, where)
