"""Kinds of GGUF files and the types of their tensors, as tables.

After `llama_ftype_get_default_type`, `tensor_get_category` and `tensor_type_fallback` of llama.cpp's src/llama-quant.cpp
(007dbbf3f).
"""

from __future__ import annotations

from estimator.weights.dtypes import BlockType, ggml_types

DEFAULT = {
    "F32": "F32",
    "F16": "F16",
    "BF16": "BF16",
    "Q8_0": "Q8_0",
    "Q6_K": "Q6_K",
    "Q5_K_M": "Q5_K",
    "Q5_K_S": "Q5_K",
    "Q5_1": "Q5_1",
    "Q5_0": "Q5_0",
    "Q4_K_M": "Q4_K",
    "Q4_K_S": "Q4_K",
    "Q4_1": "Q4_1",
    "Q4_0": "Q4_0",
    "IQ4_NL": "IQ4_NL",
    "IQ4_XS": "IQ4_XS",
    "Q3_K_L": "Q3_K",
    "Q3_K_M": "Q3_K",
    "Q3_K_S": "Q3_K",
    "IQ3_M": "IQ3_S",
    "IQ3_S": "IQ3_S",
    "IQ3_XS": "IQ3_S",
    "IQ3_XXS": "IQ3_XXS",
    "Q2_K": "Q2_K",
    "Q2_K_S": "Q2_K",
    "IQ2_M": "IQ2_S",
    "IQ2_S": "IQ2_XS",
    "IQ2_XS": "IQ2_XS",
    "IQ2_XXS": "IQ2_XXS",
    "IQ1_M": "IQ1_M",
    "IQ1_S": "IQ1_S",
    "TQ2_0": "TQ2_0",
    "TQ1_0": "TQ1_0",
    "MXFP4_MOE": "MXFP4",
}
"""The type that most matrices of a kind of file get."""
MIXTURES = tuple(DEFAULT)
PLAIN = ("F32", "F16", "BF16")
LOWEST = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ1_S", "IQ1_M")
"""Kinds with rules of their own."""
FALLBACK = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""What takes the place of a type whose blocks do not fill a row."""
EMBEDDINGS = {
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"), "Q2_K"),
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), "IQ3_S"),
    **dict.fromkeys(("TQ1_0", "TQ2_0"), "Q4_K"),
}
"""What the token embedding gets in some kinds of files."""
CATEGORIES = {
    "attn_qkv.weight": "qkv",
    "attn_kv_b.weight": "v",
    "attn_v.weight": "v",
    "attn_k.weight": "k",
    "attn_q.weight": "q",
    "attn_output.weight": "out",
    "ffn_up": "up",
    "ffn_gate": "gate",
    "ffn_down": "down",
}


def category(name: str) -> str:
    """What the rules take a tensor for (`tensor_get_category`)."""
    if name in ("output.weight", "token_embd.weight", "per_layer_token_embd.weight"):
        return name.removesuffix(".weight").removeprefix("per_layer_")
    return next((found for part, found in CATEGORIES.items() if part in name), "")


def fitting(chosen: str, columns: int) -> str:
    """The type itself, or the one in its place for a row that its blocks do not fill."""
    if columns % block(chosen).elements == 0:
        return chosen
    other = FALLBACK.get(chosen, "F16")
    return other if columns % block(other).elements == 0 else "F16"


def block(name: str) -> BlockType:
    return next(found for found in ggml_types().values() if found.name == name)
