"""Ollama's Modelfile. Ollama's documentation, docs/modelfile.md."""

from __future__ import annotations

import re
from typing import Any

from estimator.contract.errors import InvalidValue
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import Configuration

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
    name = conf.text("from")
    if not name:
        raise InvalidValue("names no model: FROM", conf.where("from"))
    conf.put("model", name)
    conf.put("task", "serve")
    conf.put("serving.engine", "ollama")
    if tokens := conf.whole("num_ctx"):
        conf.put("serving.context", tokens)
    layers = conf.whole("num_gpu")
    if layers is not None and 0 <= layers < ALL:
        conf.put("serving.gpu_layers", layers)
    if batch := conf.whole("num_batch"):
        conf.put("serving.ubatch", batch)
    spreading.hardware(conf)


ALL = 99
"""Layers that people write for all."""
