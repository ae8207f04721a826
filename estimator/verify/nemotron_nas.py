"""Llama-Nemotron, of which transformers has no class: its Llama, whose layers have what block_configs says of each."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm


class NemotronNasConfig(LlamaConfig):
    model_type = "nemotron-nas"
    block_configs: list[dict[str, Any]] | None = None


class LinearAttention(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        self.linear_attn = nn.Linear(config.hidden_size, config.hidden_size, bias=config.attention_bias)

    def forward(self, hidden_states: torch.Tensor, **shared: Any) -> tuple[torch.Tensor, None]:
        return self.linear_attn(hidden_states), None


class LinearMlp(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        self.linear_mlp = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.linear_mlp(hidden_states)
        return mixed


class NemotronNasDecoderLayer(GradientCheckpointingLayer):
    """Llama's, less what its blocks leave out."""

    def __init__(self, config: Any, place: int):
        super().__init__()
        attends, feeds = config.block_configs[place]["attention"], config.block_configs[place]["ffn"]
        self.self_attn: Any = None
        self.mlp: Any = None
        if attends.get("replace_with_linear"):
            self.self_attn = LinearAttention(config)
        elif not attends.get("no_op"):
            config.num_key_value_heads = config.num_attention_heads // attends["n_heads_in_group"]
            self.self_attn = LlamaAttention(config, place)
        if self.self_attn:
            self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        if feeds.get("replace_with_linear"):
            self.mlp = LinearMlp(config)
        elif not feeds.get("no_op"):
            width = int(2 * feeds["ffn_mult"] * config.hidden_size / 3)
            config.intermediate_size = width + -width % 256
            self.mlp = LlamaMLP(config)
        if self.mlp:
            self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden_states: torch.Tensor, **shared: Any) -> torch.Tensor:
        if self.self_attn:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
            hidden_states, _ = self.self_attn(hidden_states=hidden_states, **shared)
            hidden_states = residual + hidden_states
            del residual
        if self.mlp:
            residual = hidden_states
            hidden_states = self.post_attention_layernorm(hidden_states)
            hidden_states = self.mlp(hidden_states)
            hidden_states = residual + hidden_states
        return hidden_states


class NemotronNasForCausalLM(LlamaForCausalLM):
    config_class = NemotronNasConfig
    _no_split_modules = ["NemotronNasDecoderLayer"]

    def __init__(self, config: Any):
        super().__init__(config)
        self.model.layers = nn.ModuleList(NemotronNasDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.post_init()


AutoConfig.register("nemotron-nas", NemotronNasConfig, exist_ok=True)
AutoModelForCausalLM.register(NemotronNasConfig, NemotronNasForCausalLM, exist_ok=True)
