"""Llama 4's language model: in some layers each token passes a shared expert and few of many others.

After transformers' modeling_llama4.py (5.23).
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention
from estimator.families.counted import counted, stack
from estimator.families.feed_forward import GatedMLP
from estimator.families.llama import LlamaSpec, self_attention
from estimator.families.spec import Size
from estimator.tape import dtypes

CHUNK, PERIOD = 8192, 4
"""Tokens that most layers see at once, and of how many layers the last sees all: the defaults of its configuration, which the
published models have."""


class Llama4TextSpec(LlamaSpec):
    """Every `interleave_moe_layer_step`-th layer has experts, unless `moe_layers` names those that have."""

    runs = False

    parts_in_sglang = True
    intermediate_size_mlp: Size = 16384
    num_local_experts: Size = 16
    num_experts_per_tok: Size = 1
    interleave_moe_layer_step: Size = 1
    moe_layers: tuple[int, ...] | None = None

    @property
    def sparse(self) -> list[bool]:
        """Whether each layer has experts."""
        if self.moe_layers is not None:
            return [i in self.moe_layers for i in range(self.num_hidden_layers)]
        return [(i + 1) % self.interleave_moe_layer_step == 0 for i in range(self.num_hidden_layers)]

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        full = attention(self.num_key_value_heads, self.head_dim)
        chunk = replace(full, kind="chunk", tokens=CHUNK)
        return tuple([chunk if (i + 1) % PERIOD else full for i in range(self.num_hidden_layers)])


SPECS = {"llama4_text": Llama4TextSpec}


def causal_lm(spec: Llama4TextSpec, build: Builder) -> None:
    build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
    stack(build, spec.sparse, lambda sparse: _layer(spec, build, sparse))
    build.rms_norm("norm", spec.hidden_size)
    for name in ("inv_freq", "original_inv_freq"):
        build.buffer(name, (spec.head_dim // 2,), dtypes.float32)
    build.head(spec.hidden_size, spec.vocab_size, spec.tie_word_embeddings)


def _layer(spec: Llama4TextSpec, build: Builder, sparse: bool) -> None:
    size, width, experts = spec.hidden_size, spec.intermediate_size, spec.num_local_experts
    self_attention(spec, build)
    if sparse:
        build.weight("feed_forward.experts.gate_up_proj", (experts, size, 2 * width), spec.num_experts_per_tok)
        build.weight("feed_forward.experts.down_proj", (experts, width, size), spec.num_experts_per_tok)
        build.router("feed_forward.router", size, experts)
        GatedMLP(spec, build, "feed_forward.shared_expert")
    else:
        GatedMLP(spec, build, "feed_forward", spec.intermediate_size_mlp)
    build.rms_norm("input_layernorm", size)
    build.rms_norm("post_attention_layernorm", size)


HEADS = {"causal-lm": counted(causal_lm)}
