"""One short file per architecture: its forward pass in tape operations."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from estimator.dtypes import bfloat16
from estimator.families.build import Builder
from estimator.specs.spec import ModelSpec
from estimator.tape.tape import Tape

_FAMILIES = {
    "llama": ("llama", "Llama"),
    "mistral": ("llama", "Llama"),
    "qwen2": ("llama", "Llama"),
    "qwen3": ("llama", "Llama"),
    "gpt2": ("gpt2", "GPT2"),
}


def build_model(spec: ModelSpec, build: Builder, attention: str) -> Any:
    """The model of a spec, on the builder's tape."""
    module, name = _FAMILIES[spec.model_type]
    return getattr(import_module(f"estimator.families.{module}"), name)(spec, build, attention)


def count(spec: ModelSpec) -> int:
    """How many parameters a model has, tied weights once."""
    build = Builder(Tape(), bfloat16)
    build_model(spec, build, "sdpa")
    return sum(p.total for p in build.parameters)
