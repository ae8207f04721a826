"""What a model is made of: its parameters by module and by layer, in every type, and what a token adds to its cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from estimator.contract.errors import InvalidJob, NotModelled
from estimator.families import built
from estimator.families.build import Builder
from estimator.families.other import OtherSpec
from estimator.families.parameter import Parameter
from estimator.families.spec import ModelSpec
from estimator.quantization.formats import FORMATS
from estimator.quantization.gguf_kinds import MIXTURES
from estimator.quantization.gguf_size import header_bytes, tensor_bytes
from estimator.quantization.stored import built_bytes
from estimator.simulation.counting import counted_parameters, versions
from estimator.specs.published import PublishedModel
from estimator.specs.resolve import WEIGHTS, Model, has_weights, resolve

if TYPE_CHECKING:
    from estimator.weights.checkpoint import Checkpoint

BITS = {"float32": 32, "bfloat16": 16, "float16": 16, "float8": 8, "int8": 8, "int4": 4}
"""Bits of one number of each type, without the scales that a quantization adds."""
CACHE_TYPES = {"bfloat16": 2, "float8": 1}
"""Bytes of one number of the cache."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Group(_Part):
    """Modules or layers that are alike: how many, and what each holds, and uses for one token."""

    name: str
    times: int
    parameters: int
    active: int


class Counts(_Part):
    """A model's numbers, tied weights once. `buffers` live with it and are no parameters. Bytes are of all parameters."""

    total: int
    active: int
    """Parameters that one token uses: of a mixture's experts only those that it is sent to."""
    embedding: int
    """Parameters of the input embedding of tokens, which may be the output layer's weight, too."""
    buffers: int
    modules: list[Group]
    layers: list[Group]
    bytes: dict[str, int]
    """Bytes of all parameters by the type that all are stored in, without the scales of a quantization."""
    as_built_bytes: int
    """Bytes of all parameters as transformers holds them when it loads the model in bfloat16: some it keeps in float32."""
    buffer_bytes: int
    stored_bytes: dict[str, int] = {}
    """Bytes of a checkpoint in each format of few bits, scales included; embeddings, output layer and norms in half precision."""
    gguf_bytes: dict[str, int] | None = None
    """Bytes of all tensors in llama.cpp's file, by its kind (Q4_K_M); None where the family's files are not described."""
    gguf_header_bytes: int | None = None
    """Bytes of a GGUF file besides its tensors, nearly all of it the tokenizer; None where that is not known."""
    kv_bytes_per_token: dict[str, int] | None
    """Bytes that one token adds to the KV cache, by the type of the cache; None where there is no such cache."""


class Stored(_Part):
    """What files of weights hold: tied weights as often as they are stored, quantized ones as they are packed."""

    format: str
    files: list[str]
    missing: list[str]
    """Files that belong to it and are not there: then nothing is counted but what an index says."""
    tensors: int
    numbers: int | None
    bytes: int | None
    bytes_by_dtype: dict[str, int] | None


class Card(_Part):
    """One model: where it is from, its counts, and what the files that were named hold. `architecture` and `counts` are None
    where the files do not say what they belong to, or it is not modelled; `assumptions` say why."""

    name: str
    architecture: str | None
    source: str
    published: PublishedModel | None
    assumptions: list[str]
    context: int | None
    """Tokens that it was made for."""
    counts: Counts | None
    stored: Stored | None = None


def inspect_model(name: str | Mapping[str, Any], allow_files: bool = True) -> Card:
    """A model counted, however it is named: see `resolve`. Raises `UnknownName`, `InvalidJob` or `NotModelled`."""
    stored = None
    try:
        model = resolve(name, allow_files)
    except (InvalidJob, NotModelled) as error:
        if isinstance(name, str) and allow_files:
            stored = _stored(name)
        if stored is None:
            raise
        return Card(
            name=str(name),
            architecture=None,
            source="the header of its weights",
            published=None,
            assumptions=[str(error)],
            context=None,
            counts=None,
            stored=stored,
        )
    if isinstance(name, str) and allow_files:
        stored = _held(model.checkpoint) if model.checkpoint else _stored(name)
    if isinstance(model.spec, OtherSpec):
        return _of_no_family(model, model.spec, stored)
    context = (model.published and model.published.context) or model.spec.longest_sequence
    return Card(
        name=model.name,
        architecture=model.spec.model_type,
        source=model.source,
        published=model.published,
        assumptions=list(model.assumptions),
        context=context,
        counts=counts(model.spec),
        stored=stored,
    )


def _of_no_family(model: Model, spec: OtherSpec, stored: Stored | None) -> Card:
    """What can be said of a model that no family here describes: what transformers makes of its config, where it is installed."""
    listed = model.published.counted if model.published else None
    try:
        if listed is not None:
            counted = f"{listed.by} builds it with {listed.total:,} parameters, of which {listed.embedding:,} embed tokens"
        else:
            counted = f"transformers {versions()['transformers']} builds it with {counted_parameters(spec):,} parameters"
    except NotModelled as error:
        counted = error.message
    return Card(
        name=model.name,
        architecture=spec.model_type,
        source=model.source,
        published=model.published,
        assumptions=[*model.assumptions, spec.refusal, counted],
        context=spec.longest_sequence,
        counts=None,
        stored=stored,
    )


def _stored(name: str) -> Stored | None:
    """What the weights hold that a path names, or that lie in the folder that it names; None if it names none."""
    if not (has_weights(Path(name)) if os.path.isdir(name) else name.lower().endswith(WEIGHTS)):
        return None
    from estimator.weights.read import read_checkpoint

    return _held(read_checkpoint(name))


def _held(found: Checkpoint) -> Stored:
    return Stored(
        format=found.format,
        files=list(found.files),
        missing=list(found.missing),
        tensors=len(found.tensors),
        numbers=found.parameters,
        bytes=found.total_bytes,
        bytes_by_dtype=found.bytes_by_dtype,
    )


def counts(spec: ModelSpec) -> Counts:
    """The counts of a model with its usual head."""
    build = built(spec)
    total = sum(p.total for p in build.parameters)
    cached, described = spec.cached_per_token, spec.can.gguf
    return Counts(
        total=total,
        active=sum(p.active * p.times for p in build.parameters),
        embedding=sum(p.total for p in build.parameters if p.tokens),
        buffers=sum(b.count * b.times for b in build.buffers),
        modules=_modules(build.parameters),
        layers=_layers(build.parameters),
        bytes={name: ceil(total * bits / 8) for name, bits in BITS.items()},
        as_built_bytes=sum(p.total * p.tensor.dtype.itemsize for p in build.parameters),
        buffer_bytes=sum(b.count * b.times * b.dtype.itemsize for b in build.buffers),
        stored_bytes=_stored_bytes(spec, build) if spec.runs else {},
        gguf_bytes=tensor_bytes(spec, MIXTURES) if described else None,
        gguf_header_bytes=header_bytes(spec) if described else None,
        kv_bytes_per_token=None if cached is None else {name: cached * size for name, size in CACHE_TYPES.items()},
    )


def _stored_bytes(spec: ModelSpec, build: Builder) -> dict[str, int]:
    """In every format that a model has weights for: MXFP4 stores experts only."""
    formats = [name for name, known in FORMATS.items() if known.linears or hasattr(spec, "num_experts")]
    return {name: built_bytes(spec, build, name) for name in formats}


def _layers(parameters: list[Parameter]) -> list[Group]:
    """Each stack's layers, those together that hold as much."""
    slots: dict[int, list[Parameter]] = {}
    for p in parameters:
        if p.slot:
            slots.setdefault(id(p.slot), []).append(p)
    found: dict[tuple[str, int, int], int] = {}
    for held in slots.values():
        key = (_stack(held[0]), sum(p.count for p in held), sum(p.active for p in held))
        found[key] = found.get(key, 0) + held[0].times
    return [Group(name=name, times=times, parameters=count, active=active) for (name, count, active), times in found.items()]


def _modules(parameters: list[Parameter]) -> list[Group]:
    """The model's modules by their names; of layers' modules, those of one name together that hold as much."""
    each: dict[tuple[str, int], list[Parameter]] = {}
    for p in parameters:
        name = f"{_stack(p)}.{p.name.split('.')[0]}" if p.slot else p.name.removesuffix(".weight").removesuffix(".bias")
        each.setdefault((name, id(p.slot)), []).append(p)
    found: dict[tuple[str, int, int], int] = {}
    for (name, _), held in each.items():
        key = name, sum(p.count for p in held), sum(p.active for p in held)
        found[key] = found.get(key, 0) + held[0].times
    return [Group(name=name, times=times, parameters=count, active=active) for (name, count, active), times in found.items()]


def _stack(parameter: Parameter) -> str:
    """The name of the stack of layers that a parameter is in."""
    stack = parameter.slot.stack if parameter.slot else None
    return stack.label if stack else ""
