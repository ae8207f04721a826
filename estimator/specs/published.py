"""The shipped specs: one file of model_specs/ per published checkpoint."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, SerializeAsAny, ValidationError

from estimator import catalogue
from estimator.errors import InvalidJob
from estimator.facts import Fact
from estimator.families import FAMILIES, spec_class
from estimator.specs.spec import ModelSpec
from estimator.validation import explain


def _of_its_family(given: Any) -> Any:
    if isinstance(given, dict):
        if given.get("model_type") not in FAMILIES:
            raise ValueError(f"model_type {given.get('model_type')!r} is none of {', '.join(FAMILIES)}")
        return spec_class(given["model_type"]).model_validate(given)
    return given


class PublishedModel(BaseModel):
    """One file of model_specs/: a published checkpoint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    aliases: list[str]
    """The hub id first, then how people say it."""
    architecture: Annotated[SerializeAsAny[ModelSpec], BeforeValidator(_of_its_family)]
    parameters: Fact
    """The published count, tied weights once, buffers apart; the source says so where it is only counted."""
    context: int | None = None
    """Tokens that it was trained for, where that is not its architecture's `max_position_embeddings`."""
    dtype: Literal["float32", "float16", "bfloat16"]
    """What the published weights are stored in."""
    licence: str
    released: str
    source: str
    """Where the architecture was read."""
    as_of: str


def model_folder() -> Path:
    """Where the shipped specs are."""
    return catalogue.folder("model_specs")


@cache
def published(name: str) -> PublishedModel:
    """The shipped spec of a canonical name."""
    path = model_folder() / f"{name}.yaml"
    try:
        return PublishedModel.model_validate(catalogue.load_yaml(path))
    except ValidationError as error:
        raise InvalidJob(explain(error, PublishedModel), str(path)) from None
