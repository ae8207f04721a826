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
    _speculation(conf)
    if conf.yes("enable_dp_attention"):  # the older spelling
        conf.put("serving.attn_dp_size", conf.whole("dp_size") or 1)
        conf.given.pop("dp_size", None)
    vllm.spread(conf, "tp_size", "pp_size", "dp_size")


def _speculation(conf: Configuration) -> None:
    """How tokens are guessed ahead."""
    key = "speculative_algorithm"
    algorithm = (conf.text(key) or "").upper()
    if not algorithm:
        return
    numbers = conf.facts.tables["guesses"]
    if algorithm not in conf.facts.tables["algorithms"]:
        conf.skip(*numbers, "speculative_draft_model_path")
        conf.leave(key, f"{algorithm}: guessing in this way is not modelled, and not counted")
        return
    conf.put(f"serving.{key}", algorithm)
    path = conf.text("speculative_draft_model_path")
    if path and algorithm != "NEXTN":
        conf.put("serving.speculative_draft_model_path", path)
    for name in numbers:
        if (value := conf.whole(name)) is not None:
            conf.put(f"serving.{name}", value)
