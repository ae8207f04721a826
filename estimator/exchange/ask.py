"""The resources to request for a job, as a scheduler or a platform takes them: GPUs, which, memory of the host, disk where known.

Slurm's sbatch (--mem in GiB by its G), SkyPilot 0.14, dstack 0.22.5, Kubernetes with NVIDIA's device plugin and the labels of its
GPU feature discovery, KServe's LLMInferenceService at aaac4e294dae.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from estimator.contract.answer import Answer
from estimator.contract.errors import InvalidJob, InvalidValue, NotModelled
from estimator.contract.job import Hardware, Job
from estimator.contract.units import GB, GIB, parse_bytes
from estimator.exchange.documents import job_of
from estimator.exchange.platforms import GPU
from estimator.hardware.accelerator import accelerator
from estimator.pipeline.estimation import estimate


class Wanted(NamedTuple):
    """What a job needs of each node, and of how many."""

    job: Mapping[str, Any]
    hardware: Hardware
    name: str
    """The accelerator's, in capitals; empty where only its memory is known."""
    label: str
    """NVIDIA's own name of it, as Kubernetes' nodes are labelled; empty where that is not known."""
    least_gb: int
    """Memory of a GPU in GB that it must have, where none is named."""
    host_gib: int | None
    disk_gb: int | None


def asked(job: Job | Mapping[str, Any] | str | Path, to: str, allow_files: bool = True, today: date | None = None) -> str:
    """The request, as text for `slurm`, `skypilot`, `dstack`, `kubernetes` or `kserve`; its first line says whether the job fits.

    Raises `InvalidValue` for another name, `InvalidJob` for a training job to KServe, and what `estimate` raises.
    """
    if to not in TO:
        raise InvalidValue(f"{to!r} is nothing that resources are asked of here; write {', '.join(TO)}", "as")
    given = job_of(job)
    if given.hardware.without_gpu:
        raise NotModelled("what is asked for here has GPUs: name a gpu, or a card's memory", "hardware.ram")
    said = estimate(given, allow_files=allow_files, today=today)
    return f"# {said.verdict}: {said.reason}\n{TO[to](_wanted(given.hardware, said))}"


def _wanted(hardware: Hardware, said: Answer) -> Wanted:
    name = label = ""
    if hardware.gpu:
        card = accelerator(hardware.gpu)
        name = card.name.upper()
        label = next((alias.replace(" ", "-") for alias in card.aliases if alias.startswith("NVIDIA ")), "")
    host = said.host
    room = int(host.scheduler.removeprefix("--mem=").removesuffix("G")) if host else None
    disk = -(-sum(host.disk_bytes.values()) // GB) if host and host.disk_bytes else None
    least = parse_bytes(hardware.memory) if hardware.memory else said.memory.total_bytes
    return Wanted(said.job, hardware, name, label, -(-least // GB), room, disk)


def _slurm(asked: Wanted) -> str:
    gpus = asked.hardware.gpus
    lines = [f"--nodes={asked.hardware.nodes}", f"--gpus-per-node={f'{asked.name.lower()}:' if asked.name else ''}{gpus}"]
    lines += [f"--mem={asked.host_gib}G"] if asked.host_gib else []
    text = "#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines)
    if asked.name:
        text += "# how a cluster calls its GPUs is its own: sinfo -o %G lists them\n"
    else:
        text += f"# GPUs of {asked.least_gb} GB or more: which those are, sinfo -o %G lists\n"
    return text + (f"# {asked.disk_gb} GB of disk for what is saved\n" if asked.disk_gb else "")


def _skypilot(asked: Wanted) -> str:
    gpu = asked.name or f"{asked.least_gb}GB+"
    resources: dict[str, Any] = {"accelerators": f"{gpu}:{asked.hardware.gpus}"}
    resources |= {"memory": f"{-(-asked.host_gib * GIB // GB)}+"} if asked.host_gib else {}
    resources |= {"disk_size": asked.disk_gb} if asked.disk_gb else {}
    return _yaml({"num_nodes": asked.hardware.nodes, "resources": resources})


def _dstack(asked: Wanted) -> str:
    gpu = asked.name or f"{asked.least_gb}GB.."
    resources: dict[str, Any] = {"gpu": f"{gpu}:{asked.hardware.gpus}"}
    resources |= {"memory": f"{-(-asked.host_gib * GIB // GB)}GB.."} if asked.host_gib else {}
    resources |= {"disk": f"{asked.disk_gb}GB.."} if asked.disk_gb else {}
    kind = "service" if asked.job["task"] == "serve" else "task"
    return _yaml({"type": kind, "nodes": asked.hardware.nodes, "resources": resources})


def _container(asked: Wanted) -> dict[str, Any]:
    limits: dict[str, Any] = {GPU: asked.hardware.gpus}
    limits |= {"memory": f"{asked.host_gib}Gi"} if asked.host_gib else {}
    limits |= {"ephemeral-storage": f"{asked.disk_gb}G"} if asked.disk_gb else {}
    return {"name": "main", "resources": {"limits": limits}}


def _kubernetes(asked: Wanted) -> str:
    spec: dict[str, Any] = {"containers": [_container(asked)]}
    note = "" if asked.label else f"# on nodes whose GPUs have {asked.least_gb} GB or more\n"
    if asked.label:
        spec = {"nodeSelector": {f"{GPU}.product": asked.label}, **spec}
    if asked.hardware.nodes > 1:
        note += f"# one of {asked.hardware.nodes} such pods\n"
    return note + _yaml({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "job"}, "spec": spec})


def _kserve(asked: Wanted) -> str:
    model, serving = asked.job["model"], asked.job["serving"]
    if asked.job["task"] != "serve" or serving["engine"] != "vllm":
        raise InvalidJob("KServe's LLMInferenceService serves by vLLM: write task: serve", "task")
    if not isinstance(model, str):
        raise InvalidJob("KServe takes a model by its name", "model")
    words = f"--max-model-len {serving['context']} --gpu-memory-utilization {serving['gpu_memory_utilization']}"
    main = {**_container(asked), "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": words}]}
    spec: dict[str, Any] = {"model": {"uri": f"hf://{model}", "name": model}}
    degrees = {name: degree for name in ("tensor", "pipeline") if (degree := asked.job["parallelism"][name]) > 1}
    spec |= {"parallelism": degrees} if degrees else {}
    template: dict[str, Any] = {"containers": [main]}
    if asked.label:
        template = {"nodeSelector": {f"{GPU}.product": asked.label}, **template}
    spec["template"] = template
    head = {"apiVersion": "serving.kserve.io/v1alpha2", "kind": "LLMInferenceService", "metadata": {"name": "model"}}
    note = "" if "/" in model else "# the model's name on the hub is not known: put it in the place of this one\n"
    return note + _yaml({**head, "spec": spec})


def _yaml(settings: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(settings), sort_keys=False)


TO: dict[str, Callable[[Wanted], str]] = {
    "slurm": _slurm,
    "skypilot": _skypilot,
    "dstack": _dstack,
    "kubernetes": _kubernetes,
    "kserve": _kserve,
}
"""Of whom resources are asked."""
