"""Which type each tensor of a GGUF file gets: the mixtures of llama.cpp, such as Q4_K_M.

After `llama_tensor_get_type_impl` of llama.cpp's src/llama-quant.cpp (007dbbf3f), without a user's own choices. The kinds that
cannot be made without an importance matrix are made with one, the others without: a file of IQ4_NL or IQ4_XS that was made with
one has no Q5_K in its first layers. Before 2026 a joined `attn_qkv` had rules of its own (Q5_K throughout in Q4_K_M).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from estimator.families.spec import ModelSpec
from estimator.quantization.gguf_kinds import DEFAULT, EMBEDDINGS, LOWEST, PLAIN, block, category, fitting
from estimator.quantization.gguf_tensors import FileTensor
from estimator.weights.dtypes import BlockType


@dataclass(frozen=True, slots=True)
class Model:
    """What the rules need to know of a model. `grouped`: queries per head of keys in the first layer, 0 where that does not
    attend and keys' heads are said layer by layer. `layers` counts all of them, `values` the tensors that hold values, among
    others or alone. `turns`: how many tensors of the same role come before one, by its name. `repacked`: whether experts stay in
    MXFP4 in files of every kind: gpt-oss's checkpoint has them so, convert_hf_to_gguf.py repacks them, and llama-quantize makes
    nothing else of what is quantized already unless it is told to."""

    falcon: bool
    repacked: bool
    seventy: bool
    tied: bool
    experts: int
    grouped: int
    layers: int
    values: int
    turns: Mapping[str, int]


def facts(spec: ModelSpec, tensors: list[FileTensor]) -> Model:
    """What the rules need to know of a model with these tensors."""
    kind, asked = spec.model_type, spec.config()
    queries, layers = getattr(spec, "num_attention_heads", 1), spec.depth
    keys = getattr(spec, "num_key_value_heads", None) or queries
    experts = any(tensor.experts for tensor in tensors)
    names = {tensor.name for tensor in tensors}
    first, attends = {"blk.0.attn_k.weight", "blk.0.attn_qkv.weight"}, any(name.endswith(".attn_k.weight") for name in names)
    return Model(
        falcon=kind == "falcon",
        repacked=spec.can.graph == "gpt-oss",
        seventy=layers == 80 and (kind == "qwen2" or (kind in ("llama", "mistral") and queries != keys)),
        tied="output.weight" not in names,
        experts=int(getattr(spec, "num_experts", 0) or asked.get("num_local_experts") or 0) if experts else 0,
        grouped=0 if attends and first.isdisjoint(names) else queries // keys,
        layers=layers,
        values=sum(category(name) in ("v", "qkv") for name in names),
        turns=_turns(tensors),
    )


def _turns(tensors: list[FileTensor]) -> dict[str, int]:
    """In the order of layers and names, in which a file is written."""
    found, before = {}, Counter[str]()
    for tensor in sorted(tensors, key=lambda each: (-1 if each.layer is None else each.layer, each.name)):
        role = category(tensor.name).replace("qkv", "v")
        found[tensor.name] = before[role]
        before[role] += 1
    return found


def type_of(kind: str, tensor: FileTensor, model: Model) -> BlockType:
    """The type of one tensor in a file of a kind."""
    if tensor.float32:
        return block("F32")
    if tensor.experts and model.repacked:
        return block("MXFP4")
    default = DEFAULT[kind]
    if kind in PLAIN:
        return block("F32" if tensor.name.endswith("indexer.proj.weight") else default)  # conversion/base.py
    if any(part in tensor.name for part in ("per_layer_model_proj", "altup", "laurel")):
        return block("BF16")  # which llama-quantize leaves as it is
    return block(fitting(_chosen(kind, default, tensor, model), tensor.columns))


def _chosen(kind: str, default: str, tensor: FileTensor, model: Model) -> str:
    role = category(tensor.name)
    if role == "output" or (model.tied and role == "token_embd"):
        return _output(kind, default, tensor, model)
    if kind == "MXFP4_MOE":
        return "MXFP4" if tensor.experts else "Q8_0"
    if role == "token_embd":
        return EMBEDDINGS.get(kind, default)
    if kind in LOWEST:
        return _lowest(kind, default, role, tensor, model)
    rule = RULES.get(role)
    fed = role in ("up", "gate", "down") and model.experts > 1
    return default if rule is None else rule(kind, default, (tensor.layer or 0) if fed else model.turns[tensor.name], model)


def _output(kind: str, default: str, tensor: FileTensor, model: Model) -> str:
    if kind == "MXFP4_MOE" or model.falcon or tensor.columns % block(default).elements:
        return "Q8_0"
    if kind in LOWEST or kind == "IQ3_XXS":
        return "Q5_K"
    return default if default == "Q8_0" else "Q6_K"


def _lowest(kind: str, default: str, role: str, tensor: FileTensor, model: Model) -> str:
    better = "IQ3_S" if kind in ("IQ2_S", "IQ2_M") else "Q2_K"
    if role in ("v", "qkv"):
        return "Q4_K" if model.grouped >= 4 or model.experts >= 4 else better
    if role == "k" and model.experts == 8:
        return "Q4_K"
    if role == "down" and model.turns[tensor.name] < model.layers // 8:
        return better
    if role == "out":
        if model.experts == 8:
            return "Q5_K"
        return {"IQ1_S": "IQ2_XXS", "IQ1_M": "IQ2_XXS", "IQ2_S": "IQ3_S", "IQ2_M": "IQ3_S"}.get(kind, default)
    return default


def _values(kind: str, default: str, layer: int, model: Model) -> str:
    grouped = model.grouped >= 4
    found = default
    if kind == "Q2_K":
        found = "Q4_K" if grouped else "Q3_K"
    elif kind == "IQ3_XXS":
        found = "Q4_K" if grouped else "IQ3_XXS"
    elif (kind in ("Q2_K_S", "IQ3_XS", "IQ3_S") and grouped) or kind == "IQ3_M":
        found = "Q4_K"
    elif kind == "Q3_K_M":
        found = "Q5_K" if layer < 2 else "Q4_K"
    elif kind == "Q3_K_L" or (kind in ("IQ4_NL", "IQ4_XS") and grouped) or (kind == "Q4_K_S" and layer < 4):
        found = "Q5_K"
    elif kind in ("Q4_K_M", "Q5_K_M") and _more(layer, model.values):
        found = "Q6_K"
    if model.seventy and found in ("Q3_K", "Q4_K"):
        found = "Q5_K"
    return "Q8_0" if model.experts == 8 else found


def _keys(kind: str, default: str, layer: int, model: Model) -> str:
    return "Q8_0" if model.experts == 8 else _queries(kind, default, layer, model)


def _queries(kind: str, default: str, layer: int, model: Model) -> str:
    return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(kind, default)


def _down(kind: str, default: str, layer: int, model: Model) -> str:
    first, more = layer < model.layers // 8, _more(layer, model.layers)
    if kind == "Q2_K":
        return "Q3_K"
    if kind == "Q2_K_S":
        return "Q4_K" if first else default
    if kind == "Q3_K_M":
        return "Q5_K" if layer < model.layers // 16 else "Q4_K" if more or not model.falcon else "Q3_K"
    if kind == "IQ3_M":
        return "Q4_K" if first or (model.experts == 8 and more) else default
    if kind == "Q3_K_L":
        return "Q4_K" if model.falcon else "Q5_K"
    if kind == "Q4_K_M" and model.falcon:
        return "Q6_K" if layer < model.layers // 16 else "Q5_K" if more else "Q4_K"
    if kind in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if more else default
    if kind in ("IQ4_NL", "IQ4_XS") or (kind == "Q4_K_S" and not model.falcon):
        return "Q5_K" if first else default
    return default


def _out(kind: str, default: str, layer: int, model: Model) -> str:
    if model.falcon:
        return "Q4_K" if kind == "Q3_K_L" else default
    if model.experts == 8:
        plain = ("Q3_K_L", "Q2_K_S", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0", "TQ1_0", "TQ2_0")
        return default if kind in plain else "Q5_K"
    return {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}.get(kind, default)


def _gate(kind: str, default: str, layer: int, model: Model) -> str:
    return "IQ3_XXS" if kind == "IQ3_XS" and model.layers // 8 <= layer < 7 * model.layers // 8 else default


RULES: dict[str, Callable[[str, str, int, Model], str]] = {
    "v": _values,
    "qkv": _values,
    "k": _keys,
    "q": _queries,
    "down": _down,
    "out": _out,
    "gate": _gate,
    "up": _gate,
}


def _more(layer: int, layers: int) -> bool:
    """Whether a layer is among those that get more bits: the first and last eighth, and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
