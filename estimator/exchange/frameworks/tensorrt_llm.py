"""TensorRT-LLM's arguments, as a command or in YAML. tensorrt_llm/commands/serve.py and llmapi/llm_args.py of 1.2.

What the file of `--extra_llm_api_options` says stands above the command's own options (`update_llm_args_with_extra_dict`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator.contract.errors import Unreadable
from estimator.contract.reading import parse_yaml
from estimator.exchange.configuration import WORDS, Configuration
from estimator.exchange.frameworks import vllm

FILES = ("extra_llm_api_options", "config")
"""Options that name a file of more of them."""
CACHE = {
    "free_gpu_memory_fraction": "free_gpu_memory_fraction",
    "tokens_per_block": "tokens_per_block",
    "max_tokens": "max_total_tokens",
}
"""Numbers of `kv_cache_config`, and a job's fields."""
SILENT = ("enable_block_reuse", "enable_partial_reuse", "copy_on_partial_reuse", "onboard_blocks", "event_buffer_max_size")
"""What of `kv_cache_config` changes nothing that a GPU holds."""


def read(conf: Configuration) -> None:
    """The serving job that arguments are."""
    _more(conf)
    if conf.has(WORDS) or conf.has("model"):
        conf.put("model", vllm.served(conf, "model"))
    conf.put("task", "serve")
    conf.put("serving.engine", "tensorrt-llm")
    vllm.weights(conf)
    cache = dict(conf.part("kv_cache_config"))
    if (share := conf.number("kv_cache_free_gpu_memory_fraction")) is not None:
        cache.setdefault("free_gpu_memory_fraction", share)
    _cache(conf, cache)
    for name in conf.facts.tables["whole"]:
        if (value := conf.whole(name)) is not None:
            conf.put(f"serving.{name}", value)
    if conf.yes("enable_attention_dp"):
        conf.put("serving.enable_attention_dp", True)
    if (experts := conf.whole("ep_size")) is not None and experts > 1:
        conf.put("serving.ep_size", experts)
    if "cuda_graph_config" in conf.given and conf.given["cuda_graph_config"] is None:
        conf.put("serving.disable_cuda_graph", True)
    conf.skip("cuda_graph_config")
    if conf.get("model"):
        vllm.context(conf, "max_seq_len")
    elif (tokens := conf.whole("max_seq_len")) is not None:
        conf.put("serving.context", tokens)
    vllm.spread(conf, "tp_size", "pp_size", "dp_size")


def _more(conf: Configuration) -> None:
    """Put the settings of a file that the command names over its own."""
    for option in FILES:
        if not conf.has(option):
            continue
        path = conf.text(option) or ""
        text = conf.around.beside(path)
        if text is None:
            conf.leave(option, f"{path}: is not beside this file; the command's options alone are taken")
            continue
        content = parse_yaml(text, path)
        if not isinstance(content, Mapping):
            raise Unreadable("holds no mapping of settings", path)
        for key, value in content.items():
            conf.given[conf.facts.aliases.get(str(key), str(key))] = value


def _cache(conf: Configuration, given: dict[str, Any]) -> None:
    """What `kv_cache_config` says."""
    kind = str(given.pop("dtype", None) or "auto").lower()
    known = conf.facts.tables["cache"]
    if kind in known:
        conf.put("serving.kv_cache", known[kind])
    elif kind != "auto":
        conf.leave("kv_cache_config.dtype", f"{kind}: a job has no such cache; bf16 is taken")
    for theirs, ours in CACHE.items():
        if given.get(theirs) is not None:
            conf.put(f"serving.{ours}", given[theirs])
    for key, value in given.items():
        if key not in CACHE and key not in SILENT and value not in (None, False, 0, "", []):
            conf.leave(f"kv_cache_config.{key}", "it is not modelled, and not counted")
