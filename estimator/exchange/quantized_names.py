"""Checkpoints whose names say how they are quantized: `unsloth/Llama-3.2-1B-bnb-4bit`, `Qwen/Qwen3-32B-AWQ`, `…-Q4_K_M-GGUF`."""

from __future__ import annotations

import re
from typing import Any

from estimator.contract.errors import UnknownModel, WillItFitError
from estimator.exchange.found import Assumed, Found
from estimator.specs.resolve import resolve

ENDINGS = (
    (re.compile(r"-(?:unsloth-)?bnb-4bit$", re.I), "nf4-double"),
    (re.compile(r"-(?:GPTQ-Int4|GPTQ(?:-4bit)?|int4-gptq)$", re.I), "gptq-int4"),
    (re.compile(r"-GPTQ-Int8$", re.I), "gptq-int8"),
    (re.compile(r"-AWQ(?:-INT4)?$", re.I), "awq-int4"),
    (re.compile(r"-FP8(?:-dynamic)?$", re.I), "fp8"),
    (re.compile(r"-(?:w4a16|quantized\.w4a16)$", re.I), "gptq-int4"),
    (re.compile(r"-(?:w8a8|quantized\.w8a8|int8)$", re.I), "int8"),
    (re.compile(r"-GGUF$", re.I), None),
)
"""How such names end, and the format that is meant; a GGUF's kind is said elsewhere."""


def with_known_model(found: Found, allow_files: bool) -> Found:
    """The job of a model that is known, where only its name without its quantization is."""
    job: dict[str, Any] = found.job
    name = job["model"]
    if not isinstance(name, str):
        return found
    for pattern, storage in ENDINGS:
        base = pattern.sub("", name.strip().rstrip("/"))
        if base == name:
            continue
        try:
            resolve(name, False)
        except UnknownModel:
            try:
                resolve(base, False)
            except WillItFitError:
                return found
        except WillItFitError:
            return found
        else:
            base = name
        return _quantized(found, name, base, storage)
    return found


def _quantized(found: Found, name: str, base: str, storage: str | None) -> Found:
    job = {**found.job, "model": base}
    said = f"{name}, by the end of its name"
    if storage is None:
        pass
    elif job.get("task") == "serve":
        job["serving"] = {"weights": storage, **job.get("serving", {})}
    elif (training := job.get("training", {})).get("adapter"):
        job["training"] = {"quantization": storage, **training}
    else:
        said += "; without an adapter it is trained as a whole"
    assumed = [*found.assumed, Assumed(key="model", value=base, why=said)]
    return found.model_copy(update={"job": job, "assumed": assumed})
