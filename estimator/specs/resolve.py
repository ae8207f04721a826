"""What a caller means by "model": a name, a size, a file, or the architecture itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimator import catalogue
from estimator.errors import InvalidJob, NotModelled
from estimator.specs.generic import generic
from estimator.specs.huggingface import from_mapping, read_config
from estimator.specs.published import model_folder, published
from estimator.specs.spec import ModelSpec

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bm])", re.IGNORECASE)
_MIXTURE = re.compile(r"\d+\s*x\s*\d+(?:\.\d+)?\s*b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Model:
    """A model that was asked for. `assumptions` say what was not given but filled in."""

    name: str
    spec: ModelSpec
    source: str
    assumptions: tuple[str, ...] = ()


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
        raise NotModelled(f"{text!r} is the size of a mixture of experts, which says too little; give its config.json", "model")
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


def _from_mapping(given: Any, where: str) -> ModelSpec:
    if not isinstance(given, Mapping):
        raise InvalidJob("is not a mapping", where)
    return from_mapping(given, where)
