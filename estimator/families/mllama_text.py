"""Llama 3.2 Vision's language model: Llama with layers that attend to images in the place of some that attend to text.

After transformers' modeling_mllama.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.counted import counted, stack
from estimator.families.feed_forward import GatedMLP
from estimator.families.llama import LlamaSpec, self_attention
from estimator.tape import dtypes

SPECIAL = 8
"""Rows of the input embedding beyond the vocabulary."""


class MllamaTextSpec(LlamaSpec):
    """`cross_attention_layers` are among `num_hidden_layers`."""

    runs = False

    cross_attention_layers: tuple[int, ...] = (3, 8, 13, 18, 23, 28, 33, 38)

    @property
    def crossing(self) -> list[bool]:
        """Whether each layer attends to images."""
        return [i in self.cross_attention_layers for i in range(self.num_hidden_layers)]


SPECS = {"mllama_text_model": MllamaTextSpec}


def causal_lm(spec: MllamaTextSpec, build: Builder) -> None:
    build.embedding("embed_tokens", spec.vocab_size + SPECIAL, spec.hidden_size)
    stack(build, spec.crossing, lambda crossing: _layer(spec, build, crossing))
    build.rms_norm("norm", spec.hidden_size)
    for name in ("inv_freq", "original_inv_freq"):
        build.buffer(name, (spec.head_dim // 2,), dtypes.float32)
    build.head(spec.hidden_size, spec.vocab_size, tied=False)


def _layer(spec: MllamaTextSpec, build: Builder, crossing: bool) -> None:
    size, keys = spec.hidden_size, spec.num_key_value_heads * spec.head_dim
    if crossing:
        build.linear("cross_attn.q_proj", size, spec.num_attention_heads * spec.head_dim)
        build.linear("cross_attn.k_proj", size, keys)
        build.linear("cross_attn.v_proj", size, keys)
        build.linear("cross_attn.o_proj", spec.num_attention_heads * spec.head_dim, size)
        build.rms_norm("cross_attn.q_norm", spec.head_dim)
        build.rms_norm("cross_attn.k_norm", spec.head_dim)
        build.parameter("cross_attn_attn_gate", (1,))
        build.parameter("cross_attn_mlp_gate", (1,))
    else:
        self_attention(spec, build)
    GatedMLP(spec, build)
    build.rms_norm("input_layernorm", size)
    build.rms_norm("post_attention_layernorm", size)


HEADS = {"causal-lm": counted(causal_lm)}
