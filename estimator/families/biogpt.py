"""BioGPT: BART's attention before which norms stand, in a decoder alone, with scaled embeddings and learned positions from 2 on.

After transformers' modeling_biogpt.py (5.23).
"""

from __future__ import annotations

from estimator.contract.errors import NotModelled
from estimator.families.attention import causal_mask
from estimator.families.bart import MultiHeadAttention, scaled
from estimator.families.build import Builder
from estimator.families.heads import language_model
from estimator.families.modules import ACTIVATIONS, Embedding
from estimator.families.opt import OFFSET
from estimator.families.spec import Activation, FullHeadsSpec, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.pointwise import add, add_scalar, dropout
from estimator.tape.tensor import Tensor, empty


class BioGptSpec(FullHeadsSpec):
    in_sglang = "none"
    last_vllm = "none"
    modelled = {"layerdrop": (0, 0.0), "tie_word_embeddings": (True,)}
    learned_positions = True

    max_position_embeddings: Size = 1024
    hidden_act: Activation = "gelu"
    tie_word_embeddings: bool = True
    hidden_dropout_prob: Probability = 0.1
    attention_dropout: Probability = called("attention_probs_dropout_prob", 0.1)
    activation_dropout: Probability = 0.0


SPECS = {"biogpt": BioGptSpec}


class DecoderLayer:
    def __init__(self, spec: BioGptSpec, build: Builder):
        size, wide = spec.hidden_size, spec.intermediate_size
        self.self_attn = MultiHeadAttention("self_attn", spec.num_attention_heads, True, spec, build)
        self.self_attn_layer_norm = build.layer_norm("self_attn_layer_norm", size)
        self.fc1 = build.linear("fc1", size, wide, bias=True)
        self.fc2 = build.linear("fc2", wide, size, bias=True)
        self.final_layer_norm = build.layer_norm("final_layer_norm", size)
        self.act = ACTIVATIONS[spec.hidden_act]
        self.dropout, self.activation_dropout = spec.hidden_dropout_prob, spec.activation_dropout

    def __call__(self, hidden: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.self_attn_layer_norm(hidden)
        out, _ = self.self_attn(out, out, mask)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        residual = out
        out = self.final_layer_norm(out)
        out = self.fc1(out)
        out = self.act(out)
        out = dropout(out, self.activation_dropout)
        out = self.fc2(out)
        out = dropout(out, self.dropout)
        return add(residual, out)


class BioGpt:
    """The body of the model."""

    def __init__(self, spec: BioGptSpec, build: Builder):
        self.attention, self.dropout = build.attention, spec.hidden_dropout_prob
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        if type(self.embed_tokens) is not Embedding:
            raise NotModelled("training or adapting biogpt's scaled embed_tokens apart is not modelled", "training.adapter")
        self.embed_positions = build.embedding("embed_positions", spec.max_position_embeddings + OFFSET, spec.hidden_size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: DecoderLayer(spec, build))
        self.layer_norm = build.layer_norm("layer_norm", spec.hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        tape = ids.tape
        batch, tokens = ids.shape
        embeds = scaled(self.embed_tokens, ids)
        ones = empty(tape, (batch, tokens), dtypes.float32, "ones")
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None)
        positions = add_scalar(empty(tape, (1, tokens), dtypes.int64, "arange"))
        places = self.embed_positions(add_scalar(positions))
        hidden = add(embeds, places)
        hidden = dropout(hidden, self.dropout)
        for layer in self.layers:
            hidden = layer(hidden, mask, positions)
        hidden = self.layer_norm(hidden)
        del ones
        return hidden


HEADS = language_model(BioGpt)
