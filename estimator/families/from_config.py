"""A spec from the mapping of a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator.contract.errors import InvalidJob, NotModelled, UnknownArchitecture, did_you_mean
from estimator.contract.validation import validated
from estimator.families import FAMILIES, spec_class
from estimator.families.other import other
from estimator.families.remote import REMOTE, THINKERS, translated
from estimator.families.spec import ModelSpec


def any_model(given: Mapping[str, Any], where: str) -> ModelSpec:
    """The spec of a config's mapping; where no family has its `model_type`, or that has no model of it, the config as it is,
    which torch can count."""
    kind = given.get("model_type")
    if isinstance(kind, str) and kind and kind not in REMOTE and kind not in THINKERS:
        if kind not in FAMILIES:
            return other(given)
        if why := spec_class(kind).beyond(given):
            return other(given, why)
    return from_mapping(given, where)


def from_mapping(given: Mapping[str, Any], where: str) -> ModelSpec:
    """The spec of a config's mapping: what the family does not know is left out, what it has no model of is refused.

    What is a spec already, and no more, keeps to the spec's own rules.
    """
    given = translated(given, where)
    kind = given.get("model_type")
    if kind is None:
        raise InvalidJob(f"has no model_type; a model's config.json names one of {', '.join(FAMILIES)}", where)
    if not isinstance(kind, str) or kind not in FAMILIES:
        near = did_you_mean(str(kind), FAMILIES)
        raise UnknownArchitecture(
            f"model_type {kind!r} is not modelled yet; known are {', '.join(FAMILIES)}.{near} "
            "CONTRIBUTING.md says how to add a family; a model of the same operations can be given under a known model_type.",
            where,
        )
    family = spec_class(kind)
    if why := family.misfit(given):
        raise NotModelled(why, where)
    keys = family.keys()
    return validated(family, {name: value for name, value in given.items() if name in keys}, where)
