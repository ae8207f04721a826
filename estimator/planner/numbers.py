"""The fields of a job by their dotted names: where each stands, which values a whole number may take, and a job with others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from estimator.contract.errors import Contradiction, InvalidValue, UnknownKey, did_you_mean
from estimator.contract.job import Job
from estimator.families.spec import ModelSpec
from estimator.serving.engines import served_by

POSITIONS = ("training.sequence_length", "serving.context")
DEGREES = tuple(
    f"parallelism.{name}" for name in ("data", "tensor", "pipeline", "context", "expert", "expert_tensor", "replicas")
)
"""Numbers of ranks."""
BATCH = ("training.micro_batch_size",)
OTHERWISE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("batch", "batch_size", "bs", "per_device_train_batch_size", "micro_batch"), BATCH),
    **dict.fromkeys(("seq_len", "seqlen", "seq_length", "max_length", "max_seq_len", "max_seq_length"), POSITIONS),
    **dict.fromkeys(("ctx", "context_length", "max_model_len", "num_ctx", "length"), POSITIONS),
    **dict.fromkeys(("gpu_count", "num_gpus", "n_gpus"), ("hardware.gpus",)),
    **dict.fromkeys(("tp", "tensor_parallel_size"), ("parallelism.tensor",)),
    **dict.fromkeys(("pp", "pipeline_parallel_size"), ("parallelism.pipeline",)),
    **dict.fromkeys(("rank", "r", "lora_r", "lora_rank"), ("training.adapter.rank",)),
    **dict.fromkeys(("grad_accum", "gradient_accumulation"), ("training.gradient_accumulation_steps",)),
    **dict.fromkeys(("users", "requests"), ("serving.concurrency",)),
}
"""What programs and people call a field that has another name here."""
LAYERS = ("serving.gpu_layers", "serving.n_cpu_moe")
"""Numbers of llama.cpp's that count layers, and the output as one more."""


class Number(NamedTuple):
    """A whole number of a job: its own value, and those that it may take, in rising order."""

    own: int
    values: range | tuple[int, ...]


def number(job: Job, name: str, spec: ModelSpec) -> Number:
    """A field by its dotted name. Its values are those of the contract; but learned positions and layers end where the model's
    do, and degrees of parallelism divide the GPUs. Raises `InvalidJob` for what is no whole number."""
    part, last = place(job, name)
    own = getattr(part, last)
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


def place(job: Job, name: str) -> tuple[BaseModel, str]:
    """The part of a job that a field is of, and its name there. Raises `InvalidJob` for a name that no field has."""
    *path, last = name.split(".")
    part: Any = job
    for step in path:
        part = _field(job, part, step, name)
        if not isinstance(part, BaseModel):
            whole = name.partition(f".{last}")[0]
            said = "does not say" if part is None else f"says {str(part)[:40]!r} for"
            raise Contradiction(f"the job {said} {whole}: write that with its fields to ask about one of them", name)
    _field(job, part, last, name)
    return part, last


def with_values(job: Job, values: Mapping[str, Any]) -> dict[str, Any]:
    """What was given of a job, with other values of some fields that it has; a server's tensor-parallel degree goes with its GPUs
    where `tensor_follows` says so."""
    asked: dict[str, Any] = job.model_dump(exclude_unset=True)
    for name, value in values.items():
        part, (*path, last) = asked, name.split(".")
        for step in path:
            part = part.setdefault(step, {})
        part[last] = value
    if {"hardware", "hardware.gpus"} & {*values} and "parallelism.tensor" not in values and tensor_follows(job):
        asked["parallelism"] = {**asked.get("parallelism", {}), "tensor": asked["hardware"].get("gpus", 1)}
    return asked


def tensor_follows(job: Job) -> bool:
    """Whether a server's layers are split over all its GPUs, however many: the job does not say how it is spread over them."""
    engine, spread = served_by(job), job.parallelism.model_fields_set
    if engine is None or engine.reads_gguf or engine.allocates:
        return False
    return not {"tensor", "data"} & spread


def _field(job: Job, part: BaseModel, name: str, whole: str) -> Any:
    if name not in type(part).model_fields:
        known = list(_names(job))
        same = [one for one in known if one.endswith(f".{name}")] if name else []
        same = same or list(OTHERWISE.get(name.lower().replace("-", "_"), ()))
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
