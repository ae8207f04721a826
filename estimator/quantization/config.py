"""The format that a config.json's `quantization_config` names (transformers 5.23, utils/quantization_config.py; ModelOpt's and
compressed-tensors' as vLLM reads them)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimator.quantization.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Named:
    """A format by its name in a job; `group` where it is not the usual one, `whole` the layers that it leaves as they are."""

    name: str
    group: int | None = None
    whole: tuple[str, ...] = ()


def named(asked: Mapping[str, Any]) -> Named | None:
    """The format, or None for one that has no name here."""
    method = str(asked.get("quant_method", "")).lower()
    name = _name(method, asked)
    if name not in FORMATS:
        return None
    group = asked.get("group_size")
    usual = FORMATS[name].group
    chosen = group if isinstance(group, int) and group > 0 and usual is not None and group != usual else None
    whole = asked.get("modules_to_not_convert") or asked.get("llm_int8_skip_modules") or ()
    return Named(name, chosen, tuple(str(module) for module in whole) if isinstance(whole, list | tuple) else ())


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
    if method == "modelopt":
        return {"NVFP4": "nvfp4", "FP8": "fp8"}.get(str(asked.get("quant_algo")), "")
    if method == "compressed-tensors":
        return {"float-quantized": "fp8-row", "nvfp4-pack-quantized": "nvfp4"}.get(str(asked.get("format")), "")
    return {"fbgemm_fp8": "fp8-row", "mxfp4": "mxfp4"}.get(method, "")
