"""The whole numbers of a job: where each stands, and which values it may take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel

from estimator.contract.errors import Contradiction, InvalidValue, UnknownKey, did_you_mean
from estimator.contract.job import Job
from estimator.families.spec import ModelSpec

POSITIONS = ("training.sequence_length", "serving.context")
DEGREES = tuple(
    f"parallelism.{name}" for name in ("data", "tensor", "pipeline", "context", "expert", "expert_tensor", "replicas")
)
"""Numbers of ranks."""
LAYERS = ("serving.gpu_layers", "serving.n_cpu_moe")
"""Numbers of llama.cpp's that count layers, and the output as one more."""


class Number(NamedTuple):
    """A whole number of a job: its own value, and those that it may take, in rising order."""

    own: int
    values: range | tuple[int, ...]


def number(job: Job, name: str, spec: ModelSpec) -> Number:
    """A field by its dotted name. Its values are those of the contract; but learned positions and layers end where the model's
    do, and degrees of parallelism divide the GPUs. Raises `InvalidJob` for what is no whole number."""
    *path, last = name.split(".")
    part: Any = job
    for step in path:
        part = _field(job, part, step, name)
        if not isinstance(part, BaseModel):
            whole = name.partition(f".{last}")[0]
            said = "does not say" if part is None else f"says {str(part)[:40]!r} for"
            raise Contradiction(f"the job {said} {whole}: write that with its fields to ask about one of them", name)
    own = _field(job, part, last, name)
    said = type(part).model_json_schema(mode="serialization")["properties"][last]
    kind = next((one for one in said.get("anyOf", [said]) if one.get("type") == "integer"), None)
    if kind is None:
        raise InvalidValue("is no whole number: ask about one, such as training.sequence_length or hardware.gpus", name)
    low, high = kind.get("minimum", kind.get("ge", 0)), kind.get("maximum", kind.get("le", 2**40))
    if name in DEGREES:
        gpus = job.hardware.gpus * job.hardware.nodes
        return Number(own or 1, tuple(degree for degree in range(1, gpus + 1) if gpus % degree == 0))
    if name in LAYERS:
        high = spec.depth + (name == LAYERS[0])
    elif name in POSITIONS and spec.learned_positions:
        high = spec.longest_sequence or high
    return Number(min(max(low if own is None else own, low), high), range(low, high + 1))


def _field(job: Job, part: BaseModel, name: str, whole: str) -> Any:
    if name not in type(part).model_fields:
        known = list(_names(job))
        same = [one for one in known if one.endswith(f".{name}")] if name else []
        near = f" Did you mean {' or '.join(map(repr, same))}?" if same else did_you_mean(whole, known)
        raise UnknownKey(f"a job has no such field.{near}", whole)
    return getattr(part, name)


def _names(part: BaseModel, path: str = "") -> Iterator[str]:
    """The dotted names of all fields of a job's parts that are there."""
    for name in type(part).model_fields:
        inner = getattr(part, name)
        yield f"{path}{name}"
        if isinstance(inner, BaseModel):
            yield from _names(inner, f"{path}{name}.")
