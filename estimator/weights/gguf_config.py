"""A GGUF file's metadata under the names of config.json, for the architectures that are families here.

Metadata keys after llama.cpp's gguf-py/gguf/constants.py (0024aa741) and what its conversion/*.py write to them, tensors after
TENSOR_NAMES in the same file. What config.json has and a GGUF file does not, such as dropout, keeps the family's default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.weights.gguf_encoders import ENCODERS
from estimator.weights.gguf_layered import LAYERED
from estimator.weights.gguf_said import Said, UnsaidError, body, decoder
from estimator.weights.gguf_states import STATES

SIGMOID = 2
"""`expert_gating_func` of routers like DeepSeek-V3's; 1 is softmax (ExpertGatingFuncType)."""


def _llama(said: Said) -> dict[str, Any]:
    if said.get("expert_count"):
        return {"model_type": "mixtral", **_experts(said)}
    return {"model_type": "llama", **_biased(said), "mlp_bias": said.has("ffn_down.bias")}


def _biased(said: Said) -> dict[str, Any]:
    return {**decoder(said), "attention_bias": said.has("attn_q.bias")}


def _experts(said: Said) -> dict[str, Any]:
    return {**decoder(said), "num_experts": said.size("expert_count"), "num_experts_per_tok": said.size("expert_used_count")}


def _qwen_experts(said: Said) -> dict[str, Any]:
    return {**_experts(said), "moe_intermediate_size": said.size("expert_feed_forward_length")}


def _gemma3(said: Said) -> dict[str, Any]:
    capped = said.optional(final_logit_softcapping="final_logit_softcapping")
    return {"model_type": "gemma3_text", **decoder(said), "sliding_window": said.size("attention.sliding_window"), **capped}


def _gemma2(said: Said) -> dict[str, Any]:
    keys = {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")}
    return {"model_type": "gemma2", **decoder(said), **said.optional(sliding_window="attention.sliding_window", **keys)}


def _phi3(said: Said) -> dict[str, Any]:
    window = said.get("attention.sliding_window") or None
    rope = {"rope_type": "longrope"} if said.has("rope_factors_long.weight") else {"rope_type": "default"}
    share = {"partial_rotary_factor": said.share()}
    return {"model_type": "phi3", **decoder(said), "sliding_window": window, "rope_scaling": rope, **share}


def _gpt_neox(said: Said) -> dict[str, Any]:
    parallel = said.optional(use_parallel_residual="use_parallel_residual")
    return {"model_type": "gpt_neox", **decoder(said), "rotary_pct": said.share(), **parallel}


def _falcon(said: Said) -> dict[str, Any]:
    """Falcon-7B is of the old kind, with one head of keys; the others are of the new, with one norm (11B) or two."""
    found = {"model_type": "falcon", **decoder(said)}
    if found.get("num_key_value_heads", 1) == 1 and not said.has("attn_norm_2.weight"):
        return {**found, "num_key_value_heads": 1, "multi_query": True}
    return {**found, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 2 if said.has("attn_norm_2.weight") else 1}


def _olmo2(said: Said) -> dict[str, Any]:
    """OLMo 3 goes by the same name; it has windows."""
    window = said.get("attention.sliding_window")
    pattern = said.metadata.get(f"{said.prefix}attention.sliding_window_pattern")
    if window is None:
        return {"model_type": "olmo2", **decoder(said)}
    if not isinstance(pattern, tuple):
        raise UnsaidError("attention.sliding_window_pattern")
    kinds = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    return {"model_type": "olmo3", **decoder(said), "sliding_window": window, "layer_types": kinds}


def _deepseek2(said: Said) -> dict[str, Any]:
    """DeepSeek-V2 and V3, which differ in their routers. Newer files have latent attention's own sizes under `…_mla`."""
    rotated, keys = said.size("rope.dimension_count"), said.size("attention.key_length_mla", "attention.key_length")
    heads = said.size("attention.head_count")
    found = {
        **decoder(said),
        "num_key_value_heads": heads,
        "head_dim": rotated,
        "qk_nope_head_dim": keys - rotated,
        "v_head_dim": said.size("attention.value_length_mla", "attention.value_length"),
        "kv_lora_rank": said.size("attention.kv_lora_rank"),
        "q_lora_rank": said.get("attention.q_lora_rank"),
        "num_experts": said.size("expert_count"),
        "num_experts_per_tok": said.size("expert_used_count"),
        "moe_intermediate_size": said.size("expert_feed_forward_length"),
        "n_shared_experts": said.size("expert_shared_count"),
        "first_k_dense_replace": said.size("leading_dense_block_count"),
        **said.optional(n_group="expert_group_count", topk_group="expert_group_used_count"),
    }
    if said.get("expert_gating_func") == SIGMOID:
        return {"model_type": "deepseek_v3", **found, "norm_topk_prob": bool(said.get("expert_weights_norm"))}
    method = "greedy" if found.get("n_group", 1) in (0, 1) else "group_limited_greedy"
    return {"model_type": "deepseek_v2", **found, "topk_method": method}


def _mamba(said: Said) -> dict[str, Any]:
    if said.get("ssm.dt_b_c_rms"):
        raise UnsaidError("Falcon-Mamba is no family here")
    found = body(said)
    sizes = {"state_size": said.size("ssm.state_size"), "conv_kernel": said.size("ssm.conv_kernel")}
    expand, rank = said.size("ssm.inner_size") // max(found["hidden_size"], 1), said.size("ssm.time_step_rank")
    return {"model_type": "mamba", **found, **sizes, "expand": expand, "time_step_rank": rank}


def _mamba2(said: Said) -> dict[str, Any]:
    found, inner, heads = body(said), said.size("ssm.inner_size"), said.size("ssm.time_step_rank")
    sizes = {"state_size": said.size("ssm.state_size"), "conv_kernel": said.size("ssm.conv_kernel")}
    of_heads = {"num_heads": heads, "head_dim": inner // max(heads, 1), "n_groups": said.size("ssm.group_count")}
    return {"model_type": "mamba2", **found, **sizes, **of_heads, "expand": inner // max(found["hidden_size"], 1)}


CONFIGS: dict[str, Callable[[Said], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": lambda said: {"model_type": "qwen2", **decoder(said)},
    "qwen3": lambda said: {"model_type": "qwen3", **_biased(said)},
    "gemma": lambda said: {"model_type": "gemma", **decoder(said)},
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "gpt2": lambda said: {"model_type": "gpt2", **decoder(said)},
    "gptneox": _gpt_neox,
    "falcon": _falcon,
    "starcoder2": lambda said: {"model_type": "starcoder2", **decoder(said), "use_bias": said.has("attn_q.bias")},
    "command-r": lambda said: {"model_type": "cohere", **decoder(said), "use_qk_norm": said.has("attn_q_norm.weight")},
    "cohere2": lambda said: {"model_type": "cohere2", **decoder(said), "sliding_window": said.size("attention.sliding_window")},
    "olmo": lambda said: {"model_type": "olmo", **decoder(said), **said.optional(clip_qkv="attention.clamp_kqv")},
    "olmo2": _olmo2,
    "olmoe": lambda said: {"model_type": "olmoe", **_experts(said)},
    "granite": lambda said: {"model_type": "granite", **_biased(said), "mlp_bias": said.has("ffn_down.bias")},
    "granitemoe": lambda said: {"model_type": "granitemoe", **_experts(said)},
    "nemotron": lambda said: {"model_type": "nemotron", **decoder(said), "partial_rotary_factor": said.share()},
    "qwen2moe": lambda said: {
        "model_type": "qwen2_moe",
        **_qwen_experts(said),
        "shared_expert_intermediate_size": said.size("expert_shared_feed_forward_length"),
    },
    "qwen3moe": lambda said: {"model_type": "qwen3_moe", **_qwen_experts(said), "norm_topk_prob": True},
    "deepseek2": _deepseek2,
    "gpt-oss": lambda said: {"model_type": "gpt_oss", **_experts(said), "sliding_window": said.size("attention.sliding_window")},
    "mamba": _mamba,
    "mamba2": _mamba2,
    "smollm3": lambda said: {"model_type": "smollm3", **_biased(said)},
    "seed_oss": lambda said: {"model_type": "seed_oss", **_biased(said)},
    "arcee": lambda said: {"model_type": "arcee", **decoder(said)},
    "phi2": lambda said: {"model_type": "phi", **decoder(said), "partial_rotary_factor": said.share()},
    "glm4": lambda said: {"model_type": "glm4", **_biased(said), "partial_rotary_factor": said.share()},
    "ernie4_5": lambda said: {"model_type": "ernie4_5", **decoder(said), "use_bias": said.has("attn_q.bias")},
    "mistral3": lambda said: {"model_type": "ministral3", **decoder(said), "sliding_window": None},
    "hunyuan-dense": lambda said: {"model_type": "hunyuan_v1_dense", **_biased(said)},
    **LAYERED,
    **STATES,
    **ENCODERS,
}
"""The mapping of each `general.architecture`. As llama.cpp does, Qwen3's routers make their weights add up to one."""
