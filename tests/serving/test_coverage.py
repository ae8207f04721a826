"""What `python -m tests.serving.coverage` says of models."""

from __future__ import annotations

import pytest

from tests.serving.coverage import missing


@pytest.mark.parametrize(
    ("model", "engine", "says"),
    [
        ("llama-3.1-8b", "vllm", ""),
        ("llama-3.1-8b", "llama.cpp", ""),
        ("deepseek-v4-flash", "tensorrt-llm", "not modelled: "),
        ("codegen-2b", "vllm", "not run: "),
        ("zaya1-8b", "sglang", "no family"),
    ],
)
def test_what_an_engine_lacks(model: str, engine: str, says: str) -> None:
    found = missing(model, engine)
    assert says in found
    assert bool(found) is bool(says)
