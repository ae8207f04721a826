"""What a caller means by "model": a name, a size, a file, weights, a hub id, or the architecture itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator.contract.errors import InvalidJob, InvalidValue, NotModelled, UnknownModel
from estimator.contract.reading import load_yaml, parse_json
from estimator.contract.units import gib
from estimator.facts import catalogue
from estimator.facts.spelling import shown
from estimator.families import remote
from estimator.families.from_config import any_model, from_mapping
from estimator.families.other import OtherSpec
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.specs.generic import generic, generic_mixture
from estimator.specs.huggingface import quantized_as, read_config, stored_as, with_modelopt
from estimator.specs.naming import Named, named
from estimator.specs.published import PublishedModel, folders, read
from estimator.specs.stored import REPACKED, Stored, stripped
from estimator.specs.unbuilt import unbuilt

if TYPE_CHECKING:
    from estimator.weights.checkpoint import Checkpoint

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bm])(?:[\s-]*dense)?", re.IGNORECASE)
_MIXTURE = re.compile(r"(\d+)\s*x\s*(\d+(?:\.\d+)?)\s*b(?:[\s-]*moe)?", re.IGNORECASE)
WEIGHTS = (".safetensors", ".gguf", ".index.json")
"""How the names of weights end, in letters of either case; an index of shards is the last of them."""
_FILES = (".json", ".yaml", ".yml", *WEIGHTS)
ASK = "Of any other model, give the path of its config.json, or its hub id."
SEND = "Of any other model, send the content of its config.json in place of a name."
"""How to ask about a model that is not known: of files, and where none are read."""
OF_THE_JOB = " Answers are for the types of the job, not of the file"
_PAGE = re.compile(r"(https?://(?:huggingface|hf)\.co/[\w.-]+/[\w.-]+)/tree/.*")
"""The page of a repository's files, and its own."""
_GGUF_FILE = re.compile(r"(-\d{5}-of-\d{5})?\.gguf", re.IGNORECASE)
"""How the name of a GGUF file ends, and of one of several."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a job names. `assumptions` say what was not given but filled in."""

    name: str
    spec: ModelSpec
    source: str
    assumptions: tuple[str, ...] = ()
    published: PublishedModel | None = None
    """The file that describes it, of a model that is known by name."""
    stored: Stored | None = None
    """How its checkpoint is stored, of one that is quantized."""
    mlx: str = ""
    """The format of its checkpoint where MLX alone reads that: all is then answered of the model's own."""
    checkpoint: Checkpoint | None = None
    """What the header of its weights says, of a model that is named by them."""

    @property
    def parameters(self) -> int | None:
        """Parameters of a model that no family here describes, as its file lists them; None where it lists none."""
        counted = self.published.counted if self.published else None
        return counted.total if counted else None

    @property
    def embeds(self) -> bool:
        """Whether it is known to be for vectors of texts."""
        return self.published is not None and self.published.embeds


def resolve(model: str | Mapping[str, Any], allow_files: bool = True) -> Model:
    """The model behind a name or alias, a bare size ("13B", "8x7B"), a config.json or spec file, weights, a hub id, or an inline
    mapping, which may be JSON text: what one pastes where only text can be said.

    Files and the hub are read only where `allow_files`: a service must not open what a stranger names.
    Raises `UnknownName`, `InvalidJob` or `NotModelled`.
    """
    if isinstance(model, Mapping):
        spec = _from_mapping(model, "model", allow_files)
        return Model("inline model", spec, "the job", _said(model), stored=stored_as(model, spec))
    if not isinstance(model, str):
        raise InvalidValue(f"write a name, a size such as 13B, or a mapping, not {type(model).__name__}", "model")
    text = _PAGE.sub(r"\1", model.strip())
    if not text:
        raise InvalidValue("is empty: name a model, a size such as 13B, or a config.json", "model")
    if text.startswith("{"):
        return resolve(parse_json(text, "model"), allow_files)
    if (sized := _of_size(text)) is not None:
        return sized
    if text.lower().endswith(_FILES):
        if not allow_files and (called := _of_file_name(text)) is not None:
            return called
        if not allow_files:
            raise InvalidValue("files cannot be named here; send the architecture itself", "model")
        return _from_file(Path(text))
    if allow_files and "/" in text and os.path.isdir(text):
        return _from_folder(Path(text))
    if (found := named(folders(), text)) is not None:
        return _known(found, allow_files)
    if (shipped := _quantized(text, allow_files)) is not None:
        return shipped
    if allow_files and os.path.isdir(text):
        return _from_folder(Path(text))
    if allow_files and _HUB_ID.fullmatch(text):
        return _from_hub(text)
    if why := next(filter(None, map(unbuilt, (text, *(rest for rest, _ in stripped(text))))), ""):
        raise UnknownModel(f"no model is called {shown(text)} here.{why}")
    unknown = catalogue.unknown(folders(), text, "model", text.rpartition("/")[2])
    raise UnknownModel(f"{unknown.message} {ASK if allow_files else SEND}")


def is_name(text: str) -> bool:
    """Whether a text is the name of a known model, also of how its checkpoint is stored, or a size. Raises `UnknownModel` where
    it may be several."""
    return any(
        _SIZE.fullmatch(name) or _MIXTURE.fullmatch(name) or named(folders(), name)
        for name in (text, *(rest for rest, _ in stripped(text)))
    )


def _quantized(text: str, counts: bool, written: str = "") -> Model | None:
    """A known model whose name says how its checkpoint is stored. `written`: what the caller wrote, if not that."""
    for rest, stored in stripped(text):
        found = named(folders(), rest) or named(folders(), last := rest.rpartition("/")[2])
        if found is None and stored.gguf:
            found = named(folders(), f"{last}-text")  # a GGUF file has the language model alone
        if (model := _of_size(rest) if found is None else _known(found, counts)) is not None:
            more = f" ({stored.says})" if stored.says else ""
            same = [said for said in model.assumptions if found is None or "the same architecture" in said]
            if stored.choose and counts and _HUB_ID.fullmatch(text):
                continue  # whose config.json says it
            if stored.choose:
                endings = " or ".join(f"{model.name}-{end}" for end in stored.choose)
                raise UnknownModel(f"{shown(written or text)} does not say how {model.name} is quantized: write {endings}")
            if stored.mlx:
                return replace(model, mlx=stored.mlx, assumptions=(_of_mlx(model, stored.mlx, written or text), *same))
            if not stored.format:
                return replace(model, assumptions=(f"{written or text}: {model.name}; {stored.says}", *same))
            if stored.usual and model.stored and model.stored.format == "mxfp4":
                stored, more = Stored(REPACKED, gguf=True), " (its experts are MXFP4 in its own checkpoint, too)"
            stored = (_as_listed(found, text) if found else None) or stored
            said = f"{written or text}: {model.name}, its checkpoint in {stored.format}{more}"
            return replace(model, stored=stored, assumptions=(said, *same))
    return None


def _of_mlx(model: Model, kind: str, written: str) -> str:
    """What is said of a checkpoint that MLX alone reads."""
    from estimator.quantization.mlx import NEAREST, WORDS, mlx_bytes  # loaded where a name means MLX's

    size = "" if isinstance(model.spec, OtherSpec) else f", {gib(mlx_bytes(model.spec, kind))} of weights"
    server, file = (f"{model.name}-{end}" for end in NEAREST[kind])
    said = (
        f"{written}: {model.name} in {WORDS[kind]}{size}. vLLM, SGLang and llama.cpp do not read it and are answered with "
        f"{model.name}'s own checkpoint"
    )
    if model.stored or not isinstance(model.spec.language_model, DecoderSpec):
        return said
    return f"{said}; nearest in size are {server} for vLLM and SGLang, {file} for llama.cpp"


def _of_file_name(text: str) -> Model | None:
    """A known model by the name of its GGUF file, which is not read: Qwen3-8B-UD-Q4_K_XL.gguf."""
    name = _GGUF_FILE.sub("", text)
    return None if name == text else _quantized(f"{name}-gguf", False, text) or _quantized(name, False, text)


def _as_listed(found: Named, text: str) -> Stored | None:
    """How a quantized copy of a model is stored, if the model's file says so of its name."""
    copy = read(found.entry.path).copy_of(text)
    return copy.stored(named=True) if copy else None


def _known(found: Named, counts: bool) -> Model:
    """A model that a file describes; of another than the file's own, all that is the file's own is left out. `counts`: whether
    torch may be asked to count one of no family."""
    described = read(found.entry.path)
    spec = described.architecture
    if isinstance(spec, OtherSpec) and not counts:
        spec = spec.model_copy(update={"countable": False})
    stored = described.stored.of_name(found.entry.spoken, found.entry.other) if described.stored else None
    if (copy := described.copy_of(found.entry.name)) is not None:
        stored = copy.stored(named=False)
    if found.entry.other:
        unknown = dict.fromkeys(("licence", "released", "parameters", "dtype", "context", "stored"))
        lists: dict[str, list[str]] = {"aliases": [], "same_architecture": []}
        described = described.model_copy(update={"name": found.entry.spoken, "copies": [], **unknown, **lists})
    said = (*found.said, *remote.said(described.remote))
    return Model(found.entry.spoken, spec, described.source, said, published=described, stored=stored)


def _of_size(text: str) -> Model | None:
    """A usual architecture of the size that a text is, if it is one."""
    source = "a generic architecture of that size"
    if mixture := _MIXTURE.fullmatch(text):
        spec, assumption = generic_mixture(int(mixture[1]), float(mixture[2]), text)
        return Model(text, spec, source, (assumption,))
    if size := _SIZE.fullmatch(text):
        spec, assumption = generic(float(size[1]) * (1 if size[2].lower() == "b" else 1e-3), text)
        return Model(size[1] + size[2].upper(), spec, source, (assumption,))
    return None


def _from_file(path: Path) -> Model:
    if not os.path.exists(path):
        raise InvalidValue("there is no such file", str(path))
    if path.name.lower().endswith(WEIGHTS):
        return _from_weights(path)
    if path.suffix.lower() == ".json":
        return _from_config(path)
    content = load_yaml(path)
    if not isinstance(content, Mapping):
        raise InvalidValue("holds no mapping; a spec names a model_type and its sizes", str(path))
    inner = content.get("architecture", content)
    return Model(str(content.get("name", path.stem)), _from_mapping(inner, str(path)), str(path))


def _from_folder(path: Path) -> Model:
    """A folder's config.json, or, without one, its weights."""
    config = path / "config.json"
    return _from_weights(path) if has_weights(path) and not config.exists() else _from_file(config)


def has_weights(folder: Path) -> bool:
    """Whether there are weights in a folder that can be read."""
    return any(name.lower().endswith((*WEIGHTS[:2], ".safetensors.index.json")) for name in os.listdir(folder))


def _from_config(path: Path) -> Model:
    """A config.json; where it is of no known family, the error says what the weights beside it hold."""
    config = with_modelopt(read_config(path), path.parent)
    spec, name = any_model(config, str(path)), path.parent.resolve().name
    held = _held_beside(path) if isinstance(spec, OtherSpec) else None
    return Model(name, spec, str(path), _said(config), stored=stored_as(config, spec), checkpoint=held)


def _from_weights(path: Path) -> Model:
    """The architecture that a GGUF file says, or the config.json beside a safetensors file."""
    from estimator.specs.architecture import architecture
    from estimator.weights.read import read_checkpoint

    checkpoint = read_checkpoint(path)
    config = Path(checkpoint.path).parent / "config.json"
    if checkpoint.format == "safetensors":
        if config.exists():
            return replace(_from_config(config), checkpoint=checkpoint)
        raise InvalidValue(f"has tensors but no architecture: put its config.json beside it. {checkpoint.summary}", str(path))
    mapping = architecture(checkpoint)
    if mapping is None:
        kind = checkpoint.metadata.get("general.architecture")
        raise NotModelled(
            f"its architecture, {kind!r}, is not modelled, or it does not say enough. {checkpoint.summary}", str(path)
        )
    said = f"{checkpoint.summary}{OF_THE_JOB}"
    name, spec = _without(path.name, ".gguf"), from_mapping(mapping, str(path))
    return Model(name, spec, f"the header of {path}", (said,), checkpoint=checkpoint)


def _without(name: str, suffix: str) -> str:
    return name[: -len(suffix)] if name.lower().endswith(suffix) else name


def _held_beside(path: Path) -> Checkpoint | None:
    """The weights in the folder of a config.json, if there are any that can be read."""
    from estimator.weights.read import read_checkpoint

    try:
        return read_checkpoint(path.parent)
    except InvalidJob:
        return None


def _from_hub(name: str) -> Model:
    """A model of the hub, by its config.json there or in the hub's cache."""
    from estimator.specs.hub import Unreachable, fetched

    try:
        path = fetched(name)
    except Unreachable as why:
        near = catalogue.nearest(folders(), name)
        hint = unbuilt(name) or (f" Did you mean {' or '.join(near)}?" if near else "")
        raise UnknownModel(f"no model is called {name!r} here, and {why}.{hint}") from None
    config = read_config(path)
    source = f"config.json of {name} on the Hugging Face hub"
    spec = any_model(config, name)
    return Model(name, spec, source, _said(config), stored=stored_as(config, spec))


def _said(config: Mapping[str, Any]) -> tuple[str, ...]:
    """How a config is read, where that is not plain."""
    return (*remote.said(config.get("model_type")), *quantized_as(config))


def _from_mapping(given: Any, where: str, counts: bool = True) -> ModelSpec:
    """`counts`: whether one of no family may be named, which takes torch seconds to count."""
    if not isinstance(given, Mapping):
        raise InvalidValue("is not a mapping", where)
    return any_model(given, where) if counts else from_mapping(given, where)
