"""The format that a config.json's `quantization_config` names (transformers 5.23, utils/quantization_config.py; ModelOpt's and
compressed-tensors' as vLLM reads them)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimator.quantization.exceptions import excepted
from estimator.quantization.formats import FORMATS

MIXED = "MIXED_PRECISION"
ALGORITHMS = {"NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "FP8": "fp8"}
"""ModelOpt's names of formats, in a checkpoint that has several."""
EXPERT = re.compile(r"(?<!shared_)experts\.[\d*]+(\..*)?$")
EXCEPTIONS = ("modules_to_not_convert", "llm_int8_skip_modules", "ignore", "exclude_modules")
"""Under which names configs list the layers that are not quantized."""


@dataclass(frozen=True, slots=True)
class Named:
    """A format by its name in a job; `group` where it is not the usual one, `whole` the layers that it leaves as they are.

    `unread`: what the config leaves as it is, too, in expressions that are not understood here."""

    name: str
    group: int | None = None
    whole: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    mixed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    listed: tuple[str, ...] = ()
    """Of a config that lists what is quantized, parts of the names of that: all else is whole."""


def asked_by(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The `quantization_config` of a config.json, which may be that of its language model."""
    text = given.get("text_config")
    inner = text.get("quantization_config") if isinstance(text, Mapping) else None
    found = given.get("quantization_config") or inner
    return found if isinstance(found, Mapping) else None


def named(asked: Mapping[str, Any], layers: int | None = None) -> Named | None:
    """The format, or None for one that has no name here. `layers`: how many the language model has."""
    listed = asked.get("quantized_layers")
    if asked.get("quant_algo") == MIXED and isinstance(listed, Mapping):
        return _mixed(listed, layers)
    method = str(asked.get("quant_method") or "").lower()
    name = _name(method, asked)
    if name not in FORMATS:
        return None
    group = asked.get("group_size", _weights(asked).get("group_size"))
    usual = FORMATS[name].group
    chosen = group if isinstance(group, int) and group > 0 and usual is not None and group != usual else None
    whole = next((asked[key] for key in EXCEPTIONS if isinstance(asked.get(key), list | tuple)), ())
    return Named(name, chosen, *excepted(whole, layers))


def _mixed(listed: Mapping[str, Any], layers: int | None) -> Named | None:
    """ModelOpt's list of layers with an algorithm each (vllm/model_executor/layers/quantization/modelopt.py,
    `ModelOptMixedPrecisionConfig`): the format of the experts comes first, or else that of most layers."""
    names: dict[str, list[str]] = {}
    for name, how in listed.items():
        known = ALGORITHMS.get(str(how.get("quant_algo")) if isinstance(how, Mapping) else "")
        if known is None:
            return None
        names.setdefault(known, []).append(EXPERT.sub("experts", str(name)))
    if not names:
        return None
    first = max(names, key=lambda each: (any("experts" in name for name in names[each]), len(names[each])))
    parts = {each: excepted(patterns, layers)[0] for each, patterns in names.items()}
    heads = tuple(part for part in parts[first] if part.endswith("lm_head"))
    mixed = [(each, found) for each, found in parts.items() if each != first] + ([(first, ("lm_head",))] if heads else [])
    return Named(first, mixed=tuple(mixed), listed=tuple(part for found in parts.values() for part in found))


def _weights(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """What compressed-tensors says of the weights, where it says the same of all that are quantized."""
    groups = asked.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) and len(groups) == 1 else None
    found = first.get("weights") if isinstance(first, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _name(method: str, asked: Mapping[str, Any]) -> str:
    bits = asked.get("bits", asked.get("w_bit", asked.get("nbits", 4)))
    if method in ("bitsandbytes", "") and asked.get("load_in_8bit"):
        return "int8"
    if method in ("bitsandbytes", "") and asked.get("load_in_4bit"):
        kind = str(asked.get("bnb_4bit_quant_type", "fp4"))
        return kind + ("-double" if asked.get("bnb_4bit_use_double_quant") else "")
    if method == "gptq" and asked.get("group_size") == -1:
        return f"gptq-int{bits}-ungrouped"
    if method in ("gptq", "awq", "hqq"):
        return f"{method}-int{bits}"
    if method == "eetq":
        return "eetq-int8"
    if method == "fp8":
        return "fp8-block" if asked.get("weight_block_size") else "fp8"
    if method in ("modelopt", ""):
        return {"NVFP4": "nvfp4", "FP8": "fp8"}.get(str(asked.get("quant_algo")), "")
    if method == "compressed-tensors":
        if asked.get("format") == "pack-quantized":
            return _packed(_weights(asked))
        return {"float-quantized": "fp8-row", "nvfp4-pack-quantized": "nvfp4"}.get(str(asked.get("format")), "")
    return {"fbgemm_fp8": "fp8-row", "mxfp4": "mxfp4"}.get(method, "")


def _packed(weights: Mapping[str, Any]) -> str:
    """compressed-tensors' integers in groups: symmetric, or with zero points, which are AWQ's in bytes."""
    grouped = weights.get("type") == "int" and weights.get("strategy") == "group" and not weights.get("actorder")
    if not grouped:
        return ""
    bits = weights.get("num_bits")
    return f"packed-int{bits}" if weights.get("symmetric") else f"awq-int{bits}"
