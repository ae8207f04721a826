"""SGLang's arguments. No engine of a job is SGLang yet: weights and cache are answered as vLLM's, and what differs is left out
by name."""

from __future__ import annotations

from estimator.exchange.configuration import Configuration
from estimator.exchange.frameworks import vllm

SHORT: dict[str, str] = {}


def read(conf: Configuration) -> None:
    """The serving job that arguments are."""
    conf.put("model", vllm.served(conf, "model_path"))
    conf.put("task", "serve")
    conf.put("serving.engine", "vllm")
    conf.assume("engine", "vllm", "SGLang's own rules are not modelled: weights, and a token's cache, are the same in vLLM")
    vllm.weights(conf)
    given = (conf.text("kv_cache_dtype") or "auto").lower()
    if given in conf.facts.tables["cache"]:
        conf.put("serving.kv_cache", conf.facts.tables["cache"][given])
    elif given != "auto":
        conf.leave("kv_cache_dtype", f"{given}: a job has no such cache; bf16 is taken")
    vllm.context(conf, "context_length")
    vllm.spread(conf, "tp_size", "pp_size", "dp_size")
