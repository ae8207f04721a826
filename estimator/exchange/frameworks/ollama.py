"""Ollama's Modelfile, and its commands. Ollama's documentation, docs/modelfile.md, docs/faq.md."""

from __future__ import annotations

import re
from typing import Any

from estimator.contract.errors import InvalidValue
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import WORDS, Configuration

_LINE = re.compile(
    r"^[ \t]*(?:PARAMETER[ \t]+(?P<key>\w{1,60})|(?P<word>FROM|ADAPTER))[ \t]+(?P<value>\S[^\n]{0,400})",
    re.IGNORECASE | re.MULTILINE,
)


def settings(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """A Modelfile's parameters by their names, with `from` and `adapter`, and the line of each."""
    found: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for match in _LINE.finditer(text):
        key = (match["key"] or match["word"]).lower()
        found.setdefault(key, match["value"].strip().strip('"'))
        lines.setdefault(key, text.count("\n", 0, match.start()) + 1)
    return found, lines


def read(conf: Configuration) -> None:
    """The serving job that a Modelfile makes."""
    said = conf.given.get(WORDS) or []
    name = conf.text("from") or next((str(word) for word in said[1:2]), None)
    if not name:
        raise InvalidValue(
            "names no model, which a server loads when it is asked: name it, as in `ollama run llama3.1:8b`", "ollama"
        )
    conf.put("model", name)
    conf.put("task", "serve")
    conf.put("serving.engine", "ollama")
    for variable, key in VARIABLES.items():
        if variable in conf.launch.variables:
            conf.given.setdefault(key, conf.launch.variables[variable])
    if slots := conf.whole("num_parallel"):
        conf.put("serving.concurrency", slots)
    if kind := conf.text("kv_cache_type"):
        conf.put("serving.kv_cache", kind)
        conf.put("serving.values_cache", kind)
    if tokens := conf.whole("num_ctx"):
        conf.put("serving.context", tokens)
    layers = conf.whole("num_gpu")
    if layers is not None and 0 <= layers < ALL:
        conf.put("serving.gpu_layers", layers)
    if batch := conf.whole("num_batch"):
        conf.put("serving.ubatch", batch)
    spreading.hardware(conf)


VARIABLES = {"OLLAMA_CONTEXT_LENGTH": "num_ctx", "OLLAMA_NUM_PARALLEL": "num_parallel", "OLLAMA_KV_CACHE_TYPE": "kv_cache_type"}
"""Variables that a server of Ollama's is given, and the parameters that they stand for."""
ALL = 99
"""Layers that people write for all."""
