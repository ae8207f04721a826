"""What a caller means by "model": a name, a size, a file, or the architecture itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from estimator import catalogue
from estimator.errors import InvalidJob, NotModelled
from estimator.specs.generic import generic
from estimator.specs.huggingface import KNOWN, from_config, read_config
from estimator.specs.spec import ModelSpec, PublishedModel
from estimator.validation import explain

Kind = TypeVar("Kind", bound=BaseModel)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bm])", re.IGNORECASE)
_MIXTURE = re.compile(r"\d+\s*x\s*\d+(?:\.\d+)?\s*b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Model:
    """A model that was asked for. `assumptions` say what was not given but filled in."""

    name: str
    spec: ModelSpec
    source: str
    assumptions: tuple[str, ...] = ()


def model_folder() -> Path:
    """Where the shipped specs are."""
    return catalogue.folder("model_specs")


@cache
def published(name: str) -> PublishedModel:
    """The shipped spec of a canonical name."""
    path = model_folder() / f"{name}.yaml"
    return _validated(PublishedModel, catalogue.load_yaml(path), str(path))


def resolve(model: str | Mapping[str, Any], allow_files: bool = True) -> Model:
    """The model behind a name or alias, a bare size ("13B"), a config.json or spec file, or an inline mapping.

    Files are read only where `allow_files`: a service must not open what a stranger names.
    Raises `UnknownName`, `InvalidJob` or `NotModelled`.
    """
    if isinstance(model, Mapping):
        return Model("inline model", _from_mapping(model, "model"), "the job")
    text = model.strip()
    if not text:
        raise InvalidJob("is empty: name a model, a size such as 13B, or a config.json", "model")
    size = _SIZE.fullmatch(text)
    if size:
        billions = float(size[1]) * (1 if size[2].lower() == "b" else 1e-3)
        spec, assumption = generic(billions, text)
        return Model(text.upper(), spec, "a generic architecture of that size", (assumption,))
    if _MIXTURE.fullmatch(text):
        raise NotModelled(f"{text!r} is a mixture of experts, which are not modelled yet", "model")
    if text.lower().endswith((".json", ".yaml", ".yml")):
        if not allow_files:
            raise InvalidJob("files cannot be named here; send the architecture itself", "model")
        return _from_file(Path(text))
    if allow_files and os.path.isdir(text) and not catalogue.known(model_folder(), text):
        return _from_file(Path(text) / "config.json")
    name = catalogue.find(model_folder(), text, "model")
    found = published(name)
    return Model(name, found.architecture, found.source)


def _from_file(path: Path) -> Model:
    if not os.path.exists(path):
        raise InvalidJob("there is no such file", str(path))
    if path.suffix == ".json":
        return Model(path.parent.resolve().name, read_config(path), str(path))
    content = catalogue.load_yaml(path)
    if not isinstance(content, Mapping):
        raise InvalidJob("holds no mapping; a spec names a model_type and its sizes", str(path))
    inner = content.get("architecture", content)
    return Model(str(content.get("name", path.stem)), _from_mapping(inner, str(path)), str(path))


def _from_mapping(mapping: Any, where: str) -> ModelSpec:
    """A spec's own fields, or those of a Hugging Face config."""
    if not isinstance(mapping, Mapping):
        raise InvalidJob("is not a mapping", where)
    if set(mapping) <= set(ModelSpec.model_fields) and mapping.get("model_type") in KNOWN:
        return _validated(ModelSpec, {**_defaults(mapping), **mapping}, where)
    return from_config(mapping, where)


def _defaults(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """What a spec may leave out because it follows from the rest."""
    heads, hidden = mapping.get("num_attention_heads"), mapping.get("hidden_size")
    defaults: dict[str, Any] = {"max_position_embeddings": 4096}
    if isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        defaults |= {"num_key_value_heads": heads, "head_dim": hidden // heads}
    return defaults


def _validated(kind: type[Kind], content: Any, where: str) -> Kind:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise InvalidJob(explain(error, kind), where) from None
