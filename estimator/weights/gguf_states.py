"""A GGUF file's metadata under the names of config.json, for Qwen's models with a delta net in most layers.

Keys after what llama.cpp's conversion/qwen.py writes: what the delta net has is called as a state-space model's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.weights.gguf_said import Said, decoder


def _delta_net(said: Said) -> dict[str, Any]:
    values = said.size("ssm.time_step_rank")
    found = decoder(said) if said.get("feed_forward_length") is not None else decoder(said, wide="expert_feed_forward_length")
    ahead = 0 if said.get("nextn_predict_layers") is None else said.size("nextn_predict_layers")
    return {
        **found,
        "num_hidden_layers": found["num_hidden_layers"] - ahead,
        "linear_conv_kernel_dim": said.size("ssm.conv_kernel"),
        "linear_key_head_dim": said.size("ssm.state_size"),
        "linear_value_head_dim": said.size("ssm.inner_size") // max(values, 1),
        "linear_num_key_heads": said.size("ssm.group_count"),
        "linear_num_value_heads": values,
        "partial_rotary_factor": said.share(),
        **said.optional(full_attention_interval="full_attention_interval"),
    }


def _with_experts(said: Said) -> dict[str, Any]:
    return {
        **_delta_net(said),
        "num_experts": said.size("expert_count"),
        "num_experts_per_tok": said.size("expert_used_count"),
        "moe_intermediate_size": said.size("expert_feed_forward_length"),
        "shared_expert_intermediate_size": said.size("expert_shared_feed_forward_length"),
        "norm_topk_prob": True,
    }


STATES: dict[str, Callable[[Said], dict[str, Any]]] = {
    "qwen3next": lambda said: {"model_type": "qwen3_next", **_with_experts(said)},
    "qwen35": lambda said: {"model_type": "qwen3_5_text", **_delta_net(said)},
    "qwen35moe": lambda said: {"model_type": "qwen3_5_moe_text", **_with_experts(said)},
}
"""The mapping of each `general.architecture`."""
