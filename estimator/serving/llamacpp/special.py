"""What is special in the graph of each architecture that llama.cpp runs, by the name that its family gives it (`can.graph`).

After src/models/*.cpp of llama.cpp, as of October 2026.
"""

from __future__ import annotations

from typing import Any

CLASSIC: dict[str, Any] = {
    **dict.fromkeys(("biased", "output_bias", "feed_bias", "layer_norm", "norm_bias"), True),
    "gated": False,
    "activation": ("unary",),
}
"""Models of before Llama: biases throughout, and feed-forward layers without a gate."""
ENCODER: dict[str, Any] = {**CLASSIC, "encodes": True, "pre_norms": False, "normed_embedding": True}
"""BERT and its like: CLASSIC, with norms after each half of a layer."""
GRANITE: dict[str, Any] = {"scaled_embedding": True, "scaled_residual": True, "after_logits": ("scale",)}
"""Granite, whose embeddings, residuals and logits are multiplied by numbers."""
UNBIASED: dict[str, Any] = dict.fromkeys(("biased", "output_bias", "feed_bias"), False)
SPECIAL: dict[str, dict[str, Any]] = {
    "plain": {},
    "biased": {"biased": True},
    "gemma": {"scaled_embedding": True, "scaled_queries": True},
    "gemma-2": {
        "scaled_embedding": True,
        "scaled_queries": True,
        "post_norms": True,
        "capped_scores": ("scale", "unary", "scale"),
        "after_logits": ("scale", "unary", "scale"),
    },
    "gemma-3": {"scaled_embedding": "by token", "scaled_queries": True, "post_norms": True, "normed": "heads"},
    "phi-3": {"joined": True, "joined_feed": True, "scaled_queries": True, "residual_first": "last"},
    "gpt-oss": {"biased": True, "output_bias": True, "sinks": True, "cut": "before the norm"},
    "deepseek": {},
    "deepseek-3.2": {},
    "mistral-4": {"tempered": "latent"},
    "olmoe": {"normed": "whole"},
    "smollm-3": {},
    "seed-oss": {"biased": True, "fed_norm": "post_attention_norm"},
    "ministral-3": {"tempered": "all"},
    "qwen-vl": {"biased": True, "positions": 4},
    "qwen-3-vl": {"positions": 4, "deepstack": 3},
    "olmo-2": {"normed": "whole", "pre_norms": False, "post_norms": True},
    "exaone-4": {"normed": "heads", "pre_norms": False, "post_norms": True},
    "glm-4": {"joined_feed": True, "post_norms": True},
    "glm-4-moe": {"fed_norm": "post_attention_norm"},
    "glm-4v": {"joined_feed": True, "post_norms": True, "positions": 4},
    "glm-4v-moe": {"fed_norm": "post_attention_norm", "positions": 4},
    "minimax-m2": {"normed": "whole"},
    "command-r": {"layer_norm": True, "parallel": "residual second", "after_logits": ("scale",)},
    "command-r7b": {"layer_norm": True, "parallel": "residual second", "after_logits": ("scale",)},
    "hunyuan": {"normed": "heads", "normed_late": True},
    "hunyuan-3": {"normed": "heads", "cut": "after the norm"},
    "gpt-2": {**CLASSIC, "joined": True, "learned_positions": True},
    "gpt-neox": {**CLASSIC, "joined": True},
    "bloom-1": {**CLASSIC, "joined": True, "normed_embedding": True},
    "starcoder-2": CLASSIC,
    "nemotron-4": {"layer_norm": True, "norm_bias": True, "gated": False, "activation": ("unary", "sqr")},
    "phi-2": {**CLASSIC, "parallel": "attention first", "scaled_queries": True, "logits_bias": True},
    "falcon-1": {
        "joined": True,
        "layer_norm": True,
        "norm_bias": True,
        "gated": False,
        "activation": ("unary",),
        "parallel": "feed-forward first",
    },
    "mpt-1": {"joined": True, "layer_norm": True, "gated": False, "activation": ("unary",)},
    "arcee-1": {"gated": False, "activation": ("unary", "sqr")},
    "stable-lm": {"layer_norm": True, "norm_bias": True},
    "olmo-1": {"layer_norm": True, "norm_weight": False},
    "qwen-3.5": {
        "normed": "heads",
        "fed_norm": "post_attention_norm",
        "normed_first": True,
        "gated_queries": True,
        "positions": 4,
        "cut": "after the norm",
    },
    "qwen-3-next": {
        "normed": "heads",
        "fed_norm": "post_attention_norm",
        "normed_first": True,
        "gated_queries": True,
        "cut": "after the norm",
    },
    "nemotron-h": {"gated": False, "activation": ("unary", "sqr"), "alone": True, "cut": "after the norm"},
    "jamba-1": {"residual_first": "both"},
    "lfm-2": {"normed": "heads", "residual_first": "both"},
    "falcon-h1": {},
    "kimi-linear": {"normed_first": True},
    "glm-1": {"joined_feed": True},
    "apertus-1": {"normed": "heads", "gated": False, "activation": ("unary",)},
    "jais-2": {**CLASSIC, "activation": ("unary", "sqr")},
    "phi-moe": {
        "layer_norm": True,
        "norm_bias": True,
        "output_bias": True,
        "logits_bias": True,
        "scaled_queries": True,
        "residual_first": "last",
    },
    "exaone-moe": {"normed": "heads"},
    "mellum-2": {"normed": "heads"},
    "afmoe-1": {"scaled_embedding": True, "normed": "heads", "post_norms": True, "post_norm_first": True, "gate_beside": True},
    "gemma-4": {"scaled_embedding": "by token", "cut": "after the norm"},
    "thinned": {},
    "mimo-2": {"sinks": True},
    "minicpm-3": {"scaled_embedding": True, "scaled_residual": True, "scaled_output": True},
    "gemma-3n": {"scaled_embedding": True, "cut": "before the norm"},
    "bert-1": {**ENCODER, "learned_positions": True, "typed": True},
    "bert-distilled": {**ENCODER, "learned_positions": True},
    "nomic-bert": {**ENCODER, "joined": True, "typed": True, **UNBIASED, "gated": True, "activation": ()},
    "jina-3": {**ENCODER, "joined": True, "typed": True},
    "modern-bert": {
        "encodes": True,
        "layer_norm": True,
        "joined": True,
        "joined_feed": True,
        "normed_embedding": True,
        "first_unnormed": True,
    },
    "euro-bert": {"encodes": True},
    "gemma-3, encoding": {
        "encodes": True,
        "scaled_embedding": "by token",
        "scaled_queries": True,
        "post_norms": True,
        "normed": "heads",
    },
    "state-space": {"alone": True},
    "llama-4": {"tempered": "unturned"},
    "cohere2-moe": {"parallel": "residual second", "after_logits": ("scale",), "cut": "after the norm"},
    "granite": GRANITE,
    "granite-swa": {**GRANITE, "sinks": True},
    "granite-moe-swa": {**GRANITE, "sinks": True, "joined_feed": True},
}
"""By the names of `Abilities.graph`."""
WINDOWED = (
    "gemma-2",
    "gemma-3",
    "olmo-2",
    "exaone-4",
    "command-r7b",
    "exaone-moe",
    "mellum-2",
    "afmoe-1",
    "gemma-3n",
    "gemma-4",
    "cohere2-moe",
    "mimo-2",
    "granite-swa",
    "granite-moe-swa",
)
"""Graphs whose layers may have a sliding window."""
UNTURNED = ("gpt-2", "bloom-1", "mpt-1", "bert-1", "bert-distilled", "minicpm-3")
"""Graphs that turn neither queries nor keys, or do so where these are made."""
TURNED_IN_WINDOWS = ("exaone-4", "command-r7b", "exaone-moe", "afmoe-1", "cohere2-moe")
"""Graphs that turn queries and keys in layers with a sliding window only, where there are any."""
ROUTINGS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "not normalized": {"normalized": False},
    "shared gate": {"normalized": False, "shared_gate": "silu"},
    "of the chosen": {"softmax": "of the chosen", "normalized": False, "biased": True},
    "sigmoid": {"softmax": "none", "selection_bias": True},
    "scaled sigmoid": {"softmax": "none", "selection_bias": True, "scaled": True},
    "plain sigmoid": {"softmax": "none"},
    "llama-4": {"softmax": "none", "by_scores": True, "normalized": False, "weighed_first": True},
    "corrected": {"selection_bias": True},
    "gate beside": {"shared_gate": "sigmoid"},
}
"""By the names of `Abilities.routing`."""
SHARED = ("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size")
"""What configurations call the width of the experts that every token passes."""
SPARSE = {"gemma-3n": 10}
"""First layers whose feed-forward layer lets its largest values alone through, whatever the file says."""
