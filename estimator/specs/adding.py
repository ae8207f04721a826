"""A spec of the user's own, written from a config.json, a folder, weights or a hub id."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from estimator.contract.errors import Contradiction, InvalidValue, Unreadable
from estimator.families.other import OtherSpec
from estimator.specs.naming import forget
from estimator.specs.published import VARIABLE, own_folder, read
from estimator.specs.resolve import Model, resolve

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


def added(source: str, name: str | None = None) -> tuple[Path, Model]:
    """Write a spec of what `source` names into the user's folder, by its own name or another; where it is, and the model.

    Raises `InvalidJob` for a name that no file can have or that is taken, what `resolve` raises, and `Unreadable` where the
    folder cannot be written to.
    """
    model = resolve(source)
    if model.published is not None:
        raise Contradiction(f"{model.name} is known already: ask about it by that name", source)
    called = _called(name or Path(model.name).name)
    folder = own_folder()
    path = folder / f"{called}.yaml"
    if os.path.exists(path):
        raise Contradiction(f"there is one already, {path}: give another name with --name, or remove it", called)
    content: dict[str, Any] = {"architecture": _architecture(model)}
    if "/" in source and not os.path.exists(source):
        content = {"aliases": [source], **content}
    content |= {"source": model.source if model.source.startswith("config.json of") else f"{Path(source).name}, added by hand"}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
    except OSError as error:
        raise Unreadable(
            f"cannot be written ({error.strerror}); name a folder that can with {VARIABLE} or --specs", str(path)
        ) from None
    forget()
    read(path)
    return path, model


def _called(name: str) -> str:
    folded = "-".join(name.lower().split())
    if not _NAME.fullmatch(folded):
        raise InvalidValue("is no name for a spec: letters, digits, dots and dashes; give one with --name", name)
    return folded


def _architecture(model: Model) -> Mapping[str, Any]:
    """The config as a spec says it: of a family what it reads, of others all but what is of the checkpoint."""
    if isinstance(model.spec, OtherSpec):
        return model.spec.config() | {"architectures": [_CLASSES[model.spec.head]]}
    found: dict[str, Any] = model.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


_CLASSES = {
    "causal-lm": "ForCausalLM",
    "masked-lm": "ForMaskedLM",
    "seq2seq-lm": "ForConditionalGeneration",
    "sequence-classification": "ForSequenceClassification",
    "image-text-to-text": "ForConditionalGeneration",
}
"""How a class's name ends that has a head."""
