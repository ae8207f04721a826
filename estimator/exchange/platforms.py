"""Files of what starts programs on rented or shared machines: the command within, and the GPUs that they ask for.

SkyPilot 0.14's documentation, dstack 0.22.5 (core/models/resources.py), Kubernetes' pods, KServe at aaac4e294dae
(InferenceService, LLMInferenceService). What they hold is read as any other script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from estimator.contract.errors import InvalidValue, NoJob, NotModelled
from estimator.contract.job import Hardware
from estimator.exchange.cards import mapping, number, of_dstack, of_node, of_skypilot
from estimator.exchange.found import LeftOut

GPU = "nvidia.com/gpu"
IMAGES, VLLMS = (
    ("vllm", "sglang", "huggingfaceserver"),
    re.compile(r"--(?:model|served-model-name|max-model-len|tensor-parallel-size)\b(?![_-])"),
)
"""Parts of the names of images that start a server, and options of vLLM's, by which others that do are told."""
LANGUAGE = ("huggingface", "vllm", "llm", "")
"""KServe's formats of models that a server of language models serves."""
SERVERS = {"sglang": "python -m sglang.launch_server", "": "python -m vllm.entrypoints.openai.api_server"}
"""What an image starts whose container has arguments alone, by a word of the image's name."""


class Inside(NamedTuple):
    """What a file starts: a script, the hardware that it asks for, and what of the file is not in that."""

    script: str
    hardware: Hardware | None
    left_out: list[LeftOut]


def assigned(values: Mapping[str, Any]) -> str:
    """Variables of the environment, as a script sets them."""
    return "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items() if str(name).isidentifier())


def skypilot(given: Mapping[str, Any]) -> Inside:
    """A task, or a service of one replica."""
    nodes = number(given.get("num_nodes") or 1, "skypilot num_nodes")
    hardware, unclear = of_skypilot(mapping(given.get("resources")), nodes)
    each = hardware.gpus if hardware else 1
    known = {"SKYPILOT_NUM_NODES": nodes, "SKYPILOT_NUM_GPUS_PER_NODE": each}
    left = [LeftOut(key="service", why="the answer is of one replica")] if given.get("service") else []
    script = assigned({**mapping(given.get("envs")), **known}) + str(given.get("run") or "")
    return Inside(script, hardware, [*left, *unclear])


def dstack(given: Mapping[str, Any]) -> Inside:
    """A task or a service."""
    nodes = number(given.get("nodes") or 1, "dstack nodes")
    hardware, unclear = of_dstack(mapping(given.get("resources")).get("gpu"), nodes)
    each = hardware.gpus if hardware else 1
    known = {"DSTACK_NODES_NUM": nodes, "DSTACK_GPUS_PER_NODE": each, "DSTACK_GPUS_NUM": nodes * each}
    given_to = given.get("env")
    if isinstance(given_to, list):
        given_to = dict(str(one).split("=", 1) for one in given_to if "=" in str(one))
    lines = given.get("commands")
    script = "\n".join(map(str, lines)) if isinstance(lines, list) else ""
    return Inside(assigned({**mapping(given_to), **known}) + script, hardware, [*unclear])


def kubernetes(given: Mapping[str, Any]) -> Inside:
    """A pod, or whatever has a template of one: its first container that asks for a GPU, or has a command. Pods that are one
    group (a LeaderWorkerSet's, those of a training operator's job) are its nodes."""
    spec = mapping(given.get("spec"))
    replicas, roles = spec.get("replicas"), [mapping(one) for one in _roles(spec)]
    left = [LeftOut(key="spec.replicas", why=f"{replicas}: the answer is of one")] if replicas not in (None, 1) else []
    nodes = sum(number(one.get("replicas") or 1, "kubernetes replicas") for one in roles)
    if (group := mapping(spec.get("leaderWorkerTemplate")).get("size")) is not None:
        nodes = number(group, "kubernetes spec.leaderWorkerTemplate.size")
    for pod in _pods(given):
        for container in pod.get("containers") or ():
            container = mapping(container)
            words = [str(word) for key in ("command", "args") for word in _listed(container.get(key))]
            if words:
                asked = _asked(container, pod)
                if asked is not None and nodes > 1:
                    asked = asked.model_copy(update={"nodes": nodes})
                return Inside(_started(container, words), asked, left)
    raise NoJob("no container of it has a command or arguments", "kubernetes spec")


def _pods(given: Mapping[str, Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Specifications of pods, wherever a template has them."""
    spec = mapping(given.get("spec"))
    if isinstance(spec.get("containers"), list):
        yield spec
    if depth == 0:
        for role in _roles(spec):
            yield from _pods({"spec": role}, 1)
    group = mapping(spec.get("leaderWorkerTemplate"))
    for inner in (
        *(spec.get(key) for key in ("template", "jobTemplate")),
        group.get("leaderTemplate"),
        group.get("workerTemplate"),
    ):
        if depth < 4 and isinstance(inner, Mapping):
            yield from _pods(inner, depth + 1)


def _roles(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The roles of a training operator's job (Kubeflow's `pytorchReplicaSpecs` and their like), the first of whom leads."""
    parts = next((value for key, value in spec.items() if str(key).endswith("ReplicaSpecs") and isinstance(value, Mapping)), {})
    return [mapping(one) for _, one in sorted(parts.items())]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _started(container: Mapping[str, Any], words: list[str]) -> str:
    environment = {
        str(one["name"]): one["value"]
        for one in _listed(container.get("env"))
        if isinstance(one, Mapping) and "name" in one and "value" in one
    }
    if len(words) > 2 and words[1] == "-c" and words[0].rpartition("/")[2] in ("sh", "bash"):
        return assigned(environment) + words[2]
    command = shlex.join(words)
    if words[0].startswith("-"):
        image = str(container.get("image") or "")
        if "text-generation-inference" in image:
            raise NotModelled("text-generation-inference is not modelled; vllm, sglang and llama.cpp are", "kubernetes image")
        if image and not any(known in image for known in IMAGES) and not VLLMS.search(" ".join(words)):
            raise NoJob(
                f"options alone, of an image that is not known here ({image[:80]}): none of vLLM or SGLang", "kubernetes image"
            )
        command = f"{next(start for word, start in SERVERS.items() if word in image)} {command}"
    return assigned(environment) + command


def _asked(container: Mapping[str, Any], pod: Mapping[str, Any]) -> Hardware | None:
    """The GPUs of a container's limits, and which they are, where the pod says it by a label of its nodes."""
    resources = mapping(container.get("resources"))
    count = mapping(resources.get("limits")).get(GPU) or mapping(resources.get("requests")).get(GPU)
    if count is None:
        return None
    return of_node(number(count, f"kubernetes {GPU}"), pod)


def kserve(given: Mapping[str, Any]) -> Inside:
    """An InferenceService or LLMInferenceService, served by vLLM."""
    spec = mapping(given.get("spec"))
    if given.get("kind") == "InferenceService":
        predictor = mapping(spec.get("predictor"))
        if predictor.get("containers"):
            return kubernetes({"spec": predictor})
        model = mapping(predictor.get("model"))
        written = str(mapping(model.get("modelFormat")).get("name") or "").lower()
        if not model or written not in LANGUAGE:
            kinds = (key for key, value in predictor.items() if isinstance(value, Mapping) and "storageUri" in value)
            what = str(written or next(kinds, "nothing that is known here"))[:60]
            raise NotModelled(f"it serves {what}, not a language model by vLLM", "kserve spec.predictor")
        words = [str(word) for word in _listed(model.get("args"))]
        uri = str(model.get("storageUri") or "")
        named = [f"--model={uri.removeprefix('hf://')}"] if uri.startswith("hf://") else []
        words = [re.sub(r"^--model_id\b", "--model", word) for word in words if not word.startswith("--model_name")]
        return Inside(f"{SERVERS['']} {shlex.join([*named, *words])}", _asked(model, predictor), [])
    model, spread = mapping(spec.get("model")), mapping(spec.get("parallelism"))
    uri = str(model.get("uri") or "")
    name = uri.removeprefix("hf://") if uri.startswith("hf://") else model.get("name")
    if not name:
        raise InvalidValue("names no model: it is a template for others that do", "kserve spec.model")
    words = [
        f"--{key}-parallel-size={number(spread[key], f'kserve spec.parallelism.{key}')}"
        for key in ("tensor", "pipeline", "data")
        if key in spread
    ]
    words += ["--enable-expert-parallel"] if spread.get("expert") else []
    containers = [mapping(one) for one in _listed(mapping(spec.get("template")).get("containers"))]
    main = next((one for one in containers if one.get("name") == "main"), containers[0] if containers else {})
    variables = {mapping(one).get("name"): mapping(one).get("value") for one in _listed(main.get("env"))}
    more = str(variables.get("VLLM_ADDITIONAL_ARGS") or "")
    left = []
    if (replicas := spec.get("replicas")) not in (None, 1):
        left.append(LeftOut(key="spec.replicas", why=f"{replicas}: the answer is of one"))
    if spec.get("prefill"):
        left.append(LeftOut(key="spec.prefill", why="the answer is of a server that decodes, not of those for prompts alone"))
    listed = shlex.join([*words, *(str(word) for word in _listed(main.get("args")))])
    asked = _over_nodes(_asked(main, mapping(spec.get("template"))), spread)
    return Inside(f"vllm serve {shlex.quote(str(name))} {listed} {more}", asked, left)


def _over_nodes(asked: Hardware | None, spread: Mapping[str, Any]) -> Hardware | None:
    """What a pod asks for, on as many nodes as it takes pods to have all replicas (`dataLocal` of `data` in each)."""
    if asked is None or not spread.get("dataLocal"):
        return asked
    all_of, local = (number(spread.get(key) or 1, f"kserve spec.parallelism.{key}") for key in ("data", "dataLocal"))
    if all_of % local:
        raise InvalidValue(f"{all_of} ranks are no pods of {local}", "kserve spec.parallelism.dataLocal")
    return asked.model_copy(update={"nodes": all_of // local})
