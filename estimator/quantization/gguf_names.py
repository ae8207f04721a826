"""What llama.cpp calls the tensors that transformers has, as tables.

After TENSOR_NAMES and what each of llama.cpp's conversion/*.py does to tensors (bc6b1f728, gguf-py/gguf/constants.py).
"""

from __future__ import annotations

NAMES: dict[str, str] = {
    "embed_tokens": "token_embd",
    "wte": "token_embd",
    "embed_in": "token_embd",
    "word_embeddings": "token_embd",
    "embeddings": "token_embd",
    "wpe": "position_embd",
    "lm_head": "output",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "qkv_proj": "attn_qkv",
    "query_key_value": "attn_qkv",
    "c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "attention.dense": "attn_output",
    "self_attention.dense": "attn_output",
    "sinks": "attn_sinks",
    "q_a_proj": "attn_q_a",
    "q_b_proj": "attn_q_b",
    "kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "gate_up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "fc1": "ffn_up",
    "fc2": "ffn_down",
    "self_attn.dense": "attn_output",
    "dense_h_to_4h": "ffn_up",
    "dense_4h_to_h": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "router": "ffn_gate_inp",
    "gate.wg": "ffn_gate_inp",
    "shared_expert_gate": "ffn_gate_inp_shexp",
    "experts.down_proj": "ffn_down_exps",
    "in_proj": "ssm_in",
    "x_proj": "ssm_x",
    "dt_proj": "ssm_dt",
    "dt": "ssm_dt",
    "out_proj": "ssm_out",
    "conv1d": "ssm_conv1d",
    "A_log": "ssm_a",
    "D": "ssm_d",
    "mixer.norm": "ssm_norm",
    "mamba.norm": "ssm_norm",
    "linear_attn.norm": "ssm_norm",
    "in_proj_qkv": "attn_qkv",
    "in_proj_z": "attn_gate",
    "in_proj_b": "ssm_beta",
    "in_proj_a": "ssm_alpha",
    "in_proj_ba": "ssm_ba",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "self_attn.out_proj": "attn_output",
    "w1": "ffn_gate",
    "w2": "ffn_down",
    "w3": "ffn_up",
    "feed_forward.gate": "ffn_gate_inp",
    "mixer.gate": "ffn_gate_inp",
    "experts.up_proj": "ffn_up_exps",
    "fc1_latent_proj": "ffn_latent_down",
    "fc2_latent_proj": "ffn_latent_up",
}
"""By the end of the name that transformers has. Norms are found by their single dimension, and by `_norm`."""
NORMS: dict[str, str] = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "q_a_layernorm": "attn_q_a_norm",
    "kv_a_layernorm": "attn_kv_a_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "query_layernorm": "attn_q_norm",
    "key_layernorm": "attn_k_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "pre_ff_layernorm": "ffn_norm",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "q_layernorm": "attn_q_norm",
    "k_layernorm": "attn_k_norm",
    "dt_layernorm": "ssm_dt_norm",
    "b_layernorm": "ssm_b_norm",
    "c_layernorm": "ssm_c_norm",
    "norm": "attn_norm",
    "ln_attn": "attn_norm_2",
    "ln_mlp": "attn_norm",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "word_embeddings_layernorm": "token_embd_norm",
}
"""Norms that have names of their own."""
AFTER_ATTENTION = ("gemma-2", "gemma-3", "gpt-oss", "olmo-2", "exaone-4", "seed-oss", "glm-4-moe", "qwen-3.5", "qwen-3-next")
"""Graphs whose norm after attention is called so (`post_attention_norm`), by `Abilities.graph`."""
OUTPUT_NORMS = {
    "norm": "output_norm",
    "norm_f": "output_norm",
    "final_layernorm": "output_norm",
    "embedding_norm": "token_embd_norm",
    "ln_f": "output_norm",
    "final_layer_norm": "output_norm",
}
"""The last norm, which belongs to no layer."""
CORRECTIONS = ("e_score_correction_bias", "expert_bias")
"""What is added to the scores of experts before the best are chosen, a parameter or a buffer."""
BARE = ("ssm_a", "ssm_d")
"""Tensors whose names end so."""
ALWAYS_FLOAT32 = ("position_embd", "ffn_gate_inp", "ffn_gate_inp_shexp", "ssm_conv1d", "shortconv.conv")
"""Matrices that the conversion leaves in float32 (conversion/base.py, `prepare_tensors`), and quantization, too."""
