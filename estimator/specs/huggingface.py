"""A Hugging Face config.json on disk, and what it says of a quantized checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimator.contract.errors import Unreadable
from estimator.contract.reading import read_text
from estimator.families import built
from estimator.families.build import within
from estimator.families.other import OtherSpec
from estimator.families.spec import ModelSpec
from estimator.quantization.config import Named, asked_by, named
from estimator.specs.stored import Stored

MODELOPT = "hf_quant_config.json"
"""The file in which ModelOpt says how it quantized a checkpoint."""
SHOWN = 12
"""Layers of a list that a sentence names."""


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


def with_modelopt(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A config.json with what ModelOpt says in a file beside it, where it says itself nothing of how the checkpoint is stored
    (vllm/model_executor/model_loader/weight_utils.py, `get_quant_config`)."""
    beside = folder / MODELOPT
    if asked_by(config) is not None or not beside.is_file():
        return config
    said = read_config(beside).get("quantization")
    return {**config, "quantization_config": {"quant_method": "modelopt", **said}} if isinstance(said, Mapping) else config


def stored_as(given: Mapping[str, Any], spec: ModelSpec) -> Stored | None:
    """How a config.json says that its checkpoint is stored; None where it is not quantized, or in no format that is known."""
    known = _named(given)
    if known is None:
        return None
    mixed = tuple((name, _gathered(parts, spec)) for name, parts in known.mixed)
    whole = _unlisted(_gathered(known.listed, spec), spec) if known.listed else _gathered(known.whole, spec)
    return Stored(known.name, known.group, whole, mixed=mixed)


def _unlisted(listed: tuple[str, ...], spec: ModelSpec) -> tuple[str, ...]:
    """Linear layers of the language model that a list of what is quantized does not have."""
    if isinstance(spec, OtherSpec):
        return ()
    layers = built(spec.language_model).linears
    return tuple(dict.fromkeys(name for name in layers if not within(name, listed) and not name.startswith("lm_head")))


def _named(given: Mapping[str, Any]) -> Named | None:
    asked, text = asked_by(given), given.get("text_config")
    if asked is None:
        return None
    layers = given.get("num_hidden_layers", text.get("num_hidden_layers") if isinstance(text, Mapping) else None)
    return named(asked, layers if isinstance(layers, int) else None)


def _gathered(whole: tuple[str, ...], spec: ModelSpec) -> tuple[str, ...]:
    """Without the numbers of layers where a part is left as it is in all of those that have it."""
    numbered = Counter(one.split(".", 2)[2] for one in whole if one.startswith("layers.") and one.count(".") > 1)
    if not numbered or isinstance(spec, OtherSpec):
        return whole
    layers: Counter[str] = Counter()
    for parameter in built(spec.language_model).parameters:
        layers[parameter.name] += parameter.times
    everywhere = {
        part
        for part, said in numbered.items()
        if said >= max((times for name, times in layers.items() if within(name, (part,))), default=0)
    }
    kept = (one.split(".", 2)[2] if one.split(".", 2)[-1] in everywhere else one for one in whole)
    return tuple(dict.fromkeys(kept))


def quantized_as(given: Mapping[str, Any]) -> tuple[str, ...]:
    """What to say of a config.json whose checkpoint is quantized."""
    asked = asked_by(given)
    if asked is None:
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
    known = _named(given)
    if known is None:
        advice = "weights are counted in the job's types: no format here has its name"
    else:
        chosen = "" if known.group is None else f", in groups of {known.group}"
        kept = "" if not known.whole else f", but for {_listed(known.whole)}"
        kept += "" if not known.unread else f"; not understood, and counted as if quantized: {_listed(known.unread)}"
        advice = f"where the job says nothing else, and what runs it loads them, weights are in {known.name}{chosen}{kept}"
    return (f"its config.json says that the checkpoint is quantized ({said}); {advice}",)


def _listed(names: tuple[str, ...]) -> str:
    """The first of so many names."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
