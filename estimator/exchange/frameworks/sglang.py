"""SGLang's arguments."""

from __future__ import annotations

from estimator.exchange.configuration import Configuration
from estimator.exchange.frameworks import vllm

SHORT: dict[str, str] = {}


def read(conf: Configuration) -> None:
    """The serving job that arguments are."""
    conf.put("model", vllm.served(conf, "model_path"))
    conf.put("task", "serve")
    conf.put("serving.engine", "sglang")
    vllm.weights(conf)
    given = (conf.text("kv_cache_dtype") or "auto").lower()
    if given in conf.facts.tables["cache"]:
        conf.put("serving.kv_cache", conf.facts.tables["cache"][given])
    elif given != "auto":
        conf.leave("kv_cache_dtype", f"{given}: a job has no such cache; bf16 is taken")
    vllm.context(conf, "context_length")
    for name in conf.facts.tables["whole"]:
        if (value := conf.whole(name)) is not None:
            conf.put(f"serving.{name}", value)
    for name in conf.facts.tables["share"]:
        if (share := conf.number(name)) is not None:
            conf.put(f"serving.{name}", share)
    for name in conf.facts.tables["switch"]:
        if conf.yes(name):
            conf.put(f"serving.{name}", True)
    vllm.spread(conf, "tp_size", "pp_size", "dp_size")
