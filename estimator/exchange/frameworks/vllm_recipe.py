"""A recipe of vllm-project/recipes: `vllm serve` of its model with its own arguments, in its default variant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator.contract.errors import InvalidValue
from estimator.exchange.configuration import Configuration, Launch
from estimator.exchange.frameworks import vllm
from estimator.exchange.launch import arguments
from estimator.exchange.shell import Word


def read(conf: Configuration) -> None:
    """The serving job of a recipe."""
    model, variants = conf.part("model"), conf.part("variants")
    name = model.get("model_id")
    if not isinstance(name, str):
        raise InvalidValue("names no model_id", conf.where("model"))
    default: Any = variants.get("default") or next(iter(variants.values()), {})
    default = default if isinstance(default, Mapping) else {}
    words = [str(word) for part in (model.get("base_args"), default.get("extra_args")) if isinstance(part, list) for word in part]
    options, _, _ = arguments([Word(word, 0) for word in words], vllm.SHORT)
    inner = Configuration("vllm", {**options, "model": default.get("model_id") or name}, {}, Launch(), conf.around)
    storage = conf.facts.tables["precisions"].get(str(default.get("precision")).lower())
    vllm.read(inner)
    found = inner.found()
    conf.job, conf.left_out, conf.assumed = dict(found.job), list(found.left_out), list(found.assumed)
    if storage and conf.get("serving.weights") is None:
        conf.put("serving.weights", storage)
    conf.assume(
        "variant", "default", "of the recipe's variants; its strategies and hardware are not read: say how many GPUs with --on"
    )
    if (asked := conf.around.hardware) is not None and not conf.get("parallelism.tensor") and asked.gpus > 1:
        conf.put("parallelism.tensor", asked.gpus)
        conf.job["hardware"] = asked.model_dump(mode="json", exclude_unset=True, exclude_defaults=True)
        conf.assume("tensor_parallel_size", asked.gpus, "the recipe's single_node_tp: all GPUs of the node")
