"""Llama 3.2 Vision's language model: Llama with layers that attend to images in the place of some that attend to text.

After transformers' modeling_mllama.py (5.23). On texts alone the layers that attend to images are passed over.
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.llama import LlamaSpec, decoder_layer
from estimator.tape.tensor import Tensor

SPECIAL = 8
"""Rows of the input embedding beyond the vocabulary."""


class MllamaTextSpec(LlamaSpec):
    """`cross_attention_layers` are among `num_hidden_layers`."""

    runs = False
    modelled = {"dropout": (0, 0.0), "attention_bias": (False,), "mlp_bias": (False,)}

    cross_attention_layers: tuple[int, ...] = (3, 8, 13, 18, 23, 28, 33, 38)

    @property
    def crossing(self) -> list[bool]:
        """Whether each layer attends to images."""
        return [i in self.cross_attention_layers for i in range(self.num_hidden_layers)]


SPECS = {"mllama_text_model": MllamaTextSpec}


class CrossLayer:
    """A layer that attends to images, whose parameters get no gradients where there are none."""

    def __init__(self, spec: MllamaTextSpec, build: Builder):
        size, keys = spec.hidden_size, spec.num_key_value_heads * spec.head_dim
        self.q_proj = build.linear("cross_attn.q_proj", size, spec.num_attention_heads * spec.head_dim)
        self.k_proj = build.linear("cross_attn.k_proj", size, keys)
        self.v_proj = build.linear("cross_attn.v_proj", size, keys)
        self.o_proj = build.linear("cross_attn.o_proj", spec.num_attention_heads * spec.head_dim, size)
        self.q_norm = build.rms_norm("cross_attn.q_norm", spec.head_dim)
        self.k_norm = build.rms_norm("cross_attn.k_norm", spec.head_dim)
        self.attn_gate = build.parameter("cross_attn_attn_gate", (1,))
        self.mlp_gate = build.parameter("cross_attn_mlp_gate", (1,))
        self.mlp = GatedMLP(spec, build)
        self.input_layernorm = build.rms_norm("input_layernorm", size)
        self.post_attention_layernorm = build.rms_norm("post_attention_layernorm", size)

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        """Without images it is not called."""
        return hidden


def decoder(spec: MllamaTextSpec, build: Builder) -> Decoder:
    """The body of the language model."""

    def layer(crossing: bool) -> PreNorm | CrossLayer:
        with build.unlearning(crossing):
            return CrossLayer(spec, build) if crossing else decoder_layer(spec, build)

    wide = spec.model_copy(update={"vocab_size": spec.vocab_size + SPECIAL})
    return Decoder(wide, build, layer, spec.crossing, passes_over=lambda crossing: crossing)


def causal_lm(spec: MllamaTextSpec, build: Builder) -> Decoder:
    """The language model, for its parameters."""
    body = decoder(spec, build)
    build.head(spec.hidden_size, spec.vocab_size, tied=False)
    return body


HEADS = {"causal-lm": counted(causal_lm)}
