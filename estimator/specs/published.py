"""Models that are known by name: one file each, of the shipped folder and of the user's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, SerializeAsAny, WithJsonSchema

from estimator.contract.errors import InvalidValue, WillItFitError
from estimator.contract.reading import load_yaml
from estimator.contract.validation import validated
from estimator.facts import catalogue
from estimator.facts.fact import Fact
from estimator.facts.spelling import folded, shown
from estimator.families import FAMILIES, spec_class
from estimator.families.from_config import any_model
from estimator.families.other import other
from estimator.families.spec import ModelSpec
from estimator.specs.stored import Stored

VARIABLE = "WILLITFIT_SPECS"
"""The environment variable that names the user's folders of specs, as PATH names several."""


def _of_its_family(given: Any) -> Any:
    if isinstance(given, dict):
        if not isinstance(given.get("model_type"), str):
            raise ValueError(f"has no model_type; a family's is one of {', '.join(FAMILIES)}")
        if given["model_type"] not in FAMILIES:
            return other(given)
        if why := spec_class(given["model_type"]).beyond(given):
            return other(given, why)
        return spec_class(given["model_type"]).model_validate(given)
    return given


_OF_ANY_FAMILY = {
    "type": "object",
    "description": "The model's sizes, under the names of its config.json; docs/schema/model.json has those of each family.",
    "properties": {"model_type": {"type": "string"}},
    "required": ["model_type"],
}


class StoredAs(BaseModel):
    """In what a published checkpoint is stored, where that is quantized."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str
    """By its name in a job: mxfp4, fp8-block."""
    group: int | None = None
    """Weights that share a scale, where it is not the usual number."""
    whole: tuple[str, ...] = ()
    """Parts of the names of layers that are not quantized, beside embeddings and what chooses experts."""
    mixed: dict[str, tuple[str, ...]] = {}
    """Other formats that some layers are stored in, by parts of their names."""
    too: list[str] = []
    """Names of `same_architecture` whose checkpoints are stored so, too."""

    def of_name(self, name: str, other: bool) -> Stored | None:
        """How the checkpoint of a name is stored; None where it is not known to be quantized. `other`: it is one of others."""
        return self.stored(named=False) if not other or _spoken(name) in _all_spoken(self.too) else None

    def stored(self, named: bool) -> Stored:
        """How it is stored. `named`: whether the caller said so."""
        return Stored(self.format, self.group, self.whole, named, mixed=tuple(self.mixed.items()))


class Copy(StoredAs):
    """A checkpoint that is stored in another way: a quantized copy by others, or one of `same_architecture`."""

    names: list[str]
    """Its hub id first."""
    source: str
    """Where it was read how it is stored."""
    as_of: str


def _spoken(name: str) -> str:
    return folded(name.rpartition("/")[2])


def _all_spoken(names: list[str]) -> set[str]:
    return {_spoken(one) for one in names}


class CountedOnce(BaseModel):
    """What transformers builds of a config that no family here describes, counted once on tensors without data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    total: int
    """Parameters with the usual head, tied weights once."""
    embedding: int
    """Those of the input embedding of tokens."""
    by: str
    """The release that built it."""


class PublishedModel(BaseModel):
    """One file: a published checkpoint, or a user's own model, of which only the architecture must be said."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """The file's name, without its suffix."""
    aliases: list[str] = []
    """Names of this very model: the hub id first, then how people say it."""
    same_architecture: list[str] = []
    """Other models, such as fine-tunes, that have this architecture and these sizes: answers are the same, and say so."""
    architecture: Annotated[SerializeAsAny[ModelSpec], BeforeValidator(_of_its_family), WithJsonSchema(_OF_ANY_FAMILY)]
    parameters: Fact | None = None
    """The published count, tied weights once, buffers apart; the source says so where it is only counted."""
    counted: CountedOnce | None = None
    """Only of an architecture that no family here describes."""
    context: int | None = None
    """Tokens that it was trained for, where that is not its architecture's `max_position_embeddings`."""
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """What the published weights are stored in, but for those that `stored` says."""
    stored: StoredAs | None = None
    copies: list[Copy] = []
    """Checkpoints that are stored in another way, by their names."""
    embeds: bool = False
    """Whether its checkpoint says that it is for vectors of texts (modules.json of sentence-transformers)."""
    licence: str | None = None
    released: str | None = None
    remote: str | None = None
    """The `model_type` of its own config.json, where that is code of the checkpoint's own, and the architecture a family's."""
    source: str = "the user's own file"
    """Where the architecture was read."""
    as_of: str | None = None

    def copy_of(self, name: str) -> Copy | None:
        """The checkpoint of that name which is stored in another way, if one is known: by its maker's name, where one is said."""
        maker, _, bare = name.strip().rpartition("/")
        for one in self.copies:
            written = one.names if maker else [each.rpartition("/")[2] for each in one.names]
            if folded(name if maker else bare) in {folded(each) for each in written}:
                return one
        return None


def model_folder() -> Path:
    """Where the shipped specs are."""
    return catalogue.folder("model_specs")


def folders() -> catalogue.Folders:
    """The user's folders, in which a model may override a shipped one, and the shipped one."""
    named = [Path(name).expanduser() for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    for path in named:
        if not os.path.isdir(path):
            raise InvalidValue(f"names {shown(str(path))}, which is no folder; name one with a YAML file per model", VARIABLE)
    usual = usual_folder()
    return (*(named or ([usual] if os.path.isdir(usual) else [])), model_folder())


def usual_folder() -> Path:
    """Where the user's own specs are unless the variable names other folders."""
    return _within(os.environ.get("XDG_CONFIG_HOME") or "~/.config", os.environ.get("HOME"))


@lru_cache(maxsize=8)
def _within(configuration: str, home: str | None) -> Path:
    """Of a folder of configuration, which a `home` may stand in."""
    return Path(configuration).expanduser() / "willitfit" / "specs"


def own_folder() -> Path:
    """The folder that a new spec of the user's goes into: the first that the variable names, or the usual one."""
    named = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    return Path(named[0]).expanduser() if named else usual_folder()


def published(name: str) -> PublishedModel:
    """The model of a canonical name."""
    return read(catalogue.find(folders(), name, "model"))


def every() -> tuple[list[PublishedModel], list[WillItFitError]]:
    """All models by name, and what is wrong with the files that are none."""
    found, broken = [], []
    for path in catalogue.paths(folders()):
        try:
            found.append(read(path))
        except WillItFitError as error:
            broken.append(error)
    return found, broken


@cache
def read(path: Path) -> PublishedModel:
    """The model that a file describes; `InvalidJob` or `NotModelled` say what is wrong with one that describes none."""
    content = load_yaml(path)
    if not isinstance(content, Mapping):
        raise InvalidValue("holds no mapping; a spec has an architecture, which names a model_type and its sizes", str(path))
    if "architecture" not in content:
        content = {"architecture": any_model(content, str(path))}
    content = {"name": path.stem, **content}
    if content["name"] != path.stem:
        raise InvalidValue(f"is called {content['name']!r} within; name the file so, or leave the name out", str(path))
    return validated(PublishedModel, content, str(path))
