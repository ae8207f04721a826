"""A GGUF file's metadata under the names of config.json, for models whose layers are not all alike.

Keys after what llama.cpp's conversion/{llama4,gemma,jamba,lfm2,glm,minimax}.py write, and what src/models/*.cpp make of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.weights.gguf_said import Said, UnsaidError, body, decoder

UNNORMED = 128
"""Experts of the Llama 4 that does not normalise queries and keys (src/models/llama4.cpp, `use_kq_norm`)."""


def _llama4(said: Said) -> dict[str, Any]:
    experts = said.size("expert_count")
    if said.get("attention.sliding_window") is not None:
        raise UnsaidError("Llama 4 with other layers than three that see chunks and one that sees everything")
    return {
        "model_type": "llama4_text",
        **decoder(said),
        "intermediate_size": said.size("expert_feed_forward_length"),
        "intermediate_size_mlp": said.size("feed_forward_length"),
        "num_local_experts": experts,
        "num_experts_per_tok": said.size("expert_used_count"),
        "interleave_moe_layer_step": said.size("interleave_moe_layer_step"),
        "use_qk_norm": experts != UNNORMED,
    }


def _gemma4(said: Said) -> dict[str, Any]:
    """Layers that see everything have heads of keys of their own size, and may have another number of them and no values."""
    layers = said.size("block_count")
    slides = said.each("attention.sliding_window_pattern", layers)
    keys, wide = said.each("attention.head_count_kv", layers), said.each("feed_forward_length", layers)
    full = slides.index(False) if False in slides else None
    if full is None or True not in slides:
        raise UnsaidError("attention.sliding_window_pattern")
    shared = not said.has_in("attn_v.weight", full)
    return {
        "model_type": "gemma4_text",
        **body(said),
        "num_attention_heads": said.size("attention.head_count"),
        "max_position_embeddings": said.size("context_length"),
        "intermediate_size": wide[0],
        "use_double_wide_mlp": wide[-1] == 2 * wide[0],
        "num_key_value_heads": keys[slides.index(True)],
        "num_global_key_value_heads": keys[full] if shared else None,
        "attention_k_eq_v": shared,
        "head_dim": said.size("attention.key_length_swa"),
        "global_head_dim": said.size("attention.key_length"),
        "sliding_window": said.size("attention.sliding_window"),
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
        "num_kv_shared_layers": said.size("attention.shared_kv_layers"),
        "hidden_size_per_layer_input": said.size("embedding_length_per_layer_input"),
        **said.optional(final_logit_softcapping="final_logit_softcapping"),
        **(_gemma4_experts(said) if said.get("expert_count") else {}),
    }


def _gemma4_experts(said: Said) -> dict[str, Any]:
    counts = {"num_experts": said.size("expert_count"), "num_experts_per_tok": said.size("expert_used_count")}
    return {"enable_moe_block": True, **counts, "moe_intermediate_size": said.size("expert_feed_forward_length")}


def _jamba(said: Said) -> dict[str, Any]:
    """Layers that attend have heads of keys; those with experts have a router."""
    keys = said.each("attention.head_count_kv", said.size("block_count"))
    attends = [layer for layer, heads in enumerate(keys) if heads]
    sparse = [layer for layer in range(len(keys)) if said.has_in("ffn_gate_inp.weight", layer)]
    found = {**decoder(said), "num_key_value_heads": max(keys)}
    for name, places in (("attn", attends), ("expert", sparse)):
        if len(places) < 2:
            raise UnsaidError("which layers attend, and which have experts")
        found |= {f"{name}_layer_offset": places[0], f"{name}_layer_period": places[1] - places[0]}
    return {
        "model_type": "jamba",
        **found,
        "num_experts": said.size("expert_count"),
        "num_experts_per_tok": said.size("expert_used_count"),
        "mamba_d_state": said.size("ssm.state_size"),
        "mamba_d_conv": said.size("ssm.conv_kernel"),
        "mamba_expand": said.size("ssm.inner_size") // max(found["hidden_size"], 1),
        "time_step_rank": said.size("ssm.time_step_rank"),
    }


def _lfm2(said: Said) -> dict[str, Any]:
    """Layers without heads of keys are convolutions. The width is the one that its config's is adjusted to."""
    keys = said.each("attention.head_count_kv", said.size("block_count"))
    found = {**decoder(said), "num_key_value_heads": max(keys), "conv_L_cache": said.size("shortconv.l_cache")}
    kinds = ["full_attention" if heads else "conv" for heads in keys]
    return {"model_type": "lfm2", **found, "layer_types": kinds, "block_auto_adjust_ff_dim": False}


def _lfm2_moe(said: Said) -> dict[str, Any]:
    """LFM2 with experts in all but the first layers."""
    found = {name: value for name, value in _lfm2(said).items() if name != "block_auto_adjust_ff_dim"}
    experts = {"num_experts": said.size("expert_count"), "num_experts_per_tok": said.size("expert_used_count")}
    widths = {"moe_intermediate_size": said.size("expert_feed_forward_length")}
    return {**found, "model_type": "lfm2_moe", **experts, **widths, "num_dense_layers": said.size("leading_dense_block_count")}


def _ernie_moe(said: Said) -> dict[str, Any]:
    return {
        "model_type": "ernie4_5_moe",
        **decoder(said),
        "moe_num_experts": said.size("expert_count"),
        "moe_k": said.size("expert_used_count"),
        "moe_intermediate_size": said.size("expert_feed_forward_length"),
        "moe_num_shared_experts": said.size("expert_shared_count"),
        "moe_layer_start_index": said.size("leading_dense_block_count"),
        "moe_layer_interval": said.size("interleave_moe_layer_step"),
    }


def _exaone4(said: Said) -> dict[str, Any]:
    found = {"model_type": "exaone4", **decoder(said), "sliding_window": said.get("attention.sliding_window")}
    slides = [False] * found["num_hidden_layers"]
    if found["sliding_window"] is not None:
        slides = said.each("attention.sliding_window_pattern", found["num_hidden_layers"])
    return {**found, "layer_types": ["sliding_attention" if each else "full_attention" for each in slides]}


def _glm4_moe(said: Said) -> dict[str, Any]:
    """The last layers may be those that guess tokens ahead, which are no part of the model, nor loaded (`TENSOR_SKIP`)."""
    found = decoder(said)
    ahead = 0 if said.get("nextn_predict_layers") is None else said.size("nextn_predict_layers")
    return {
        "model_type": "glm4_moe",
        **found,
        "num_hidden_layers": found["num_hidden_layers"] - ahead,
        "num_experts": said.size("expert_count"),
        "num_experts_per_tok": said.size("expert_used_count"),
        "moe_intermediate_size": said.size("expert_feed_forward_length"),
        "n_shared_experts": said.size("expert_shared_count"),
        "first_k_dense_replace": said.size("leading_dense_block_count"),
        "partial_rotary_factor": said.share(),
        "attention_bias": said.has("attn_q.bias"),
        "use_qk_norm": said.has("attn_q_norm.weight"),
        **said.optional(n_group="expert_group_count", topk_group="expert_group_used_count", norm_topk_prob="expert_weights_norm"),
    }


def _minimax_m2(said: Said) -> dict[str, Any]:
    experts = {"num_local_experts": said.size("expert_count"), "num_experts_per_tok": said.size("expert_used_count")}
    width = {"intermediate_size": said.size("expert_feed_forward_length", "feed_forward_length")}
    return {"model_type": "minimax_m2", **decoder(said), **experts, **width, "partial_rotary_factor": said.share()}


LAYERED: dict[str, Callable[[Said], dict[str, Any]]] = {
    "llama4": _llama4,
    "gemma4": _gemma4,
    "jamba": _jamba,
    "lfm2": _lfm2,
    "lfm2moe": _lfm2_moe,
    "glm4moe": _glm4_moe,
    "ernie4_5-moe": _ernie_moe,
    "exaone4": _exaone4,
    "minimax-m2": _minimax_m2,
}
"""The mapping of each `general.architecture`."""
