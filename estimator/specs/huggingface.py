"""A Hugging Face config.json on disk, and what it says of a quantized checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimator.contract.errors import Unreadable
from estimator.contract.reading import read_text
from estimator.quantization.config import named
from estimator.specs.stored import Stored


def read_config(path: Path) -> dict[str, Any]:
    """A config.json on disk; `InvalidJob` says what is wrong with a file that is not one."""
    try:
        config = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise Unreadable(f"is not JSON (line {error.lineno}: {error.msg}); give a model's config.json", str(path)) from None
    except RecursionError:
        raise Unreadable("is nested too deeply for a config.json", str(path)) from None
    except ValueError:
        raise Unreadable("has a number of thousands of digits", str(path)) from None
    if not isinstance(config, dict):
        raise Unreadable("holds no JSON object; give a model's config.json", str(path))
    return config


def stored_as(given: Mapping[str, Any]) -> Stored | None:
    """How a config.json says that its checkpoint is stored; None where it is not quantized, or in no format that is known."""
    asked = given.get("quantization_config")
    known = named(asked) if isinstance(asked, Mapping) else None
    return Stored(known.name, known.group, known.whole) if known else None


def quantized_as(given: Mapping[str, Any]) -> tuple[str, ...]:
    """What to say of a config.json whose checkpoint is quantized."""
    asked = given.get("quantization_config")
    if not isinstance(asked, Mapping):
        return ()
    method = str(asked.get("quant_method", "some method"))
    bits = asked.get("bits") or (4 if asked.get("load_in_4bit") else 8 if asked.get("load_in_8bit") else None)
    group = asked.get("group_size")
    said = " ".join(
        [
            method,
            *([f"{bits} bits"] if bits else []),
            *([f"in groups of {group}"] if isinstance(group, int) and group > 0 else []),
        ]
    )
    known = named(asked)
    if known is None:
        advice = "weights are counted in the job's types: no format here has its name"
    else:
        chosen = "" if known.group is None else f", in groups of {known.group}"
        kept = "" if not known.whole else f", but for {', '.join(known.whole)}"
        advice = f"where the job says nothing else, and what runs it loads them, weights are in {known.name}{chosen}{kept}"
    return (f"its config.json says that the checkpoint is quantized ({said}); {advice}",)
