"""Frameworks that give a model to an engine: the job is what the engine's own reader makes of what it is given."""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import InvalidValue
from estimator.exchange.configuration import Configuration, Launch
from estimator.exchange.frameworks import llama_cpp, sglang, vllm

READERS = {"vllm": vllm.read, "sglang": sglang.read, "llama.cpp": llama_cpp.read}


def delegate(conf: Configuration, engine: str, given: dict[str, Any]) -> None:
    """The job that the engine's own reader makes of what a framework gives it."""
    if not any(given.get(key) for key in ("model", "model_path", "hf_repo")):
        raise InvalidValue("it names no model: write its name, or its folder", conf.where("model"))
    inner = Configuration(engine, given, {}, Launch(conf.launch.gpus, conf.launch.nodes), conf.around)
    READERS[engine](inner)
    found = inner.found()
    conf.job = dict(found.job)
    conf.left_out += found.left_out
    for one in found.assumed:
        conf.assume(one.key, one.value, one.why)
