"""A model of no family here: its step as torch counts it, as a simulation; remembered on disk.

torch is reached by name, and only where it is installed: nothing here imports it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from estimator.contract.errors import UnknownArchitecture, did_you_mean
from estimator.contract.job import Job
from estimator.contract.version import SOFTWARE_VERSION
from estimator.families import FAMILIES
from estimator.families.build import Builder
from estimator.families.other import INSTALL, OtherSpec
from estimator.families.parameter import Parameter
from estimator.simulation import shelf
from estimator.simulation.record import Kind, Record
from estimator.tape import dtypes
from estimator.tape.gpu import Gpu
from estimator.tape.tape import Mark, Phase, Storage, Tape
from estimator.tape.tensor import Tensor

COUNTER = "estimator.verify.counter"
"""The only module that is imported by its name: it needs torch."""
NEEDED = ("torch", "transformers", "peft")
TABLES = ("auto_mappings.py", "configuration_auto.py")
"""Where transformers names the types of its configs."""
SHAPES = {"bool": "bool_"}


class Weight(NamedTuple):
    """A parameter of a model that was built."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool


@dataclass(frozen=True, slots=True)
class Counted:
    """A step as torch ran it on tensors without data; `how`: on which layers, `seconds`: how long that took."""

    record: Record
    weights: list[Weight]
    how: str
    seconds: float
    remarks: list[str]


def can_count() -> bool:
    """Whether what counting needs is installed (extra `torch`)."""
    return all(find_spec(name) for name in NEEDED)


def versions() -> dict[str, str]:
    """The releases that a count depends on."""

    def of(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "none"

    return {name: of(name) for name in NEEDED}


@cache
def _counters() -> str:
    """What counts, by its own text: what another one counted is not read back."""
    found = sha256(SOFTWARE_VERSION.encode())
    for path in sorted((Path(__file__).parents[1] / "verify").glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def counted(job: Job, spec: OtherSpec, gpu: Gpu) -> Counted:
    """The step of a job with its defaults, from disk if it was counted before. Raises `NotModelled`."""
    refuse_without_torch(spec)
    text = json.dumps([spec.config_text, spec.model_type, job.training.model_dump(mode="json"), gpu.exact, gpu.prefers_cudnn])
    key = sha256(json.dumps([text, versions(), _counters()]).encode()).hexdigest()
    if (known := shelf.read(key)) is not None:
        return _from_json(known)
    found: Counted = import_module(COUNTER).count(job, spec, gpu)
    shelf.write(key, _as_json(found))
    return found


def weights(spec: OtherSpec) -> list[Weight]:
    """The parameters of the model with its usual head, from disk if they were counted before. Raises `NotModelled`."""
    refuse_without_torch(spec)
    key = sha256(json.dumps(["weights", spec.model_dump_json(), versions(), _counters()]).encode()).hexdigest()
    known = shelf.read(key)
    if known is None:
        known = import_module(COUNTER).weights(spec)
        shelf.write(key, known)
    return [Weight(name, tuple(shape), dtype, trainable) for name, shape, dtype, trainable in known]


def counted_parameters(spec: OtherSpec) -> int:
    """How many parameters the model with its usual head has, tied weights once. Raises `NotModelled`."""
    return sum(prod(weight.shape) for weight in weights(spec))


def refuse_without_torch(spec: OtherSpec) -> None:
    """Raise `UnknownArchitecture` where nothing can count the model here."""
    kind, near = spec.model_type, did_you_mean(spec.model_type, FAMILIES)
    if not spec.countable:
        raise UnknownArchitecture(
            f"model_type {kind!r} is of no family here, and a service runs torch for nobody; on a machine of yours, with "
            f"{INSTALL}, what training it takes is counted by torch",
            "model",
        )
    if not can_count():
        raise UnknownArchitecture(
            f"model_type {kind!r} is of no family here; with {INSTALL} it is counted by torch, if transformers has it.{near}",
            "model",
        )
    if not _in_transformers(kind):
        remote = "; its own code (auto_map) is never run" if spec.remote else ""
        whose = f"neither a family here nor transformers {versions()['transformers']} has a model_type {kind!r}{remote}"
        raise UnknownArchitecture(
            f"{whose}.{near} CONTRIBUTING.md says how to add a family; a model of the same operations can be given under a known "
            "model_type.",
            "model",
        )


@cache
def _in_transformers(model_type: str) -> bool:
    """Whether the installed transformers may have a type: its tables of types are read, since to import them takes seconds."""
    found = find_spec("transformers")
    folder = Path(str(found.origin)).parent / "models" / "auto" if found and found.origin else None
    tables = [] if folder is None else [path for name in TABLES if (path := folder / name).is_file()]
    return not tables or any(f'"{model_type}"' in path.read_text(encoding="utf-8") for path in tables)


def builder(found: Counted, gpu: Gpu) -> Builder:
    """The count as a tape, with the model's parameters."""
    tape = Tape(gpu)
    for kind in found.record.kinds[1:]:
        tape.sizes.append(kind.nbytes)
        tape.components.append(kind.component)
        tape.operations.append(kind.operation)
        tape.slots.append(None)
        tape.forms.append(_form(kind))
    tape.events = list(found.record.events)
    tape.phases = [Phase(start, name) for start, name in found.record.phases]
    tape.marks = [Mark(start, None) for start, _ in found.record.phases]
    tape.stop = len(tape.events)
    build = Builder(tape, dtypes.bfloat16)
    for weight in found.weights:
        tensor = Tensor(Storage(tape, 0, weight.name, filled=False), weight.shape, _dtype(weight.dtype))
        elements = tensor.numel
        build.parameters.append(Parameter(weight.name, tensor, tensor, None, elements, elements, trainable=weight.trainable))
    return build


def _dtype(name: str) -> dtypes.DType:
    found: dtypes.DType = getattr(dtypes, SHAPES.get(name, name), dtypes.float32)
    return found


def _form(kind: Kind) -> Any:
    known = kind.dtype and hasattr(dtypes, SHAPES.get(kind.dtype, kind.dtype))
    return (kind.shape, _dtype(kind.dtype)) if kind.shape is not None and kind.dtype and known else None


def _as_json(found: Counted) -> dict[str, Any]:
    """With each kind once."""
    table: dict[Kind, int] = {}
    rows = [table.setdefault(kind, len(table)) for kind in found.record.kinds]
    return {
        "table": list(table),
        "kinds": rows,
        "events": list(found.record.events),
        "phases": list(found.record.phases),
        "weights": found.weights,
        "how": found.how,
        "seconds": found.seconds,
        "remarks": found.remarks,
    }


def _from_json(given: Any) -> Counted:
    table = [
        Kind(nbytes, operation, component, None if shape is None else tuple(shape), dtype)
        for nbytes, operation, component, shape, dtype in given["table"]
    ]
    phases = [(start, name) for start, name in given["phases"]]
    weights = [Weight(name, tuple(shape), dtype, trainable) for name, shape, dtype, trainable in given["weights"]]
    record = Record([table[i] for i in given["kinds"]], given["events"], phases)
    return Counted(record, weights, given["how"], given["seconds"], given["remarks"])
