"""BART: an encoder and a decoder of post-norm layers, learned positions, one embedding for both sides and the output.

After transformers' modeling_bart.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

from pydantic import model_validator

from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.encoders import refuse_quantization
from estimator.families.heads import Head
from estimator.families.modules import ACTIVATIONS, Embedding
from estimator.families.seq2seq import ClassificationHead, Seq2SeqClassification, Seq2SeqLM
from estimator.families.spec import Activation, Depth, ModelSpec, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.checkpoint import EVERY
from estimator.tape.pointwise import add, add_scalar, dropout, mul_scalar
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape, transpose


class BartSpec(ModelSpec):
    last_vllm = "none"
    why_not_vllm = "since 0.11 a plugin does, vllm-project/bart-plugin, which is not modelled"
    modelled = {
        "encoder_layerdrop": (0,),
        "decoder_layerdrop": (0,),
        "is_encoder_decoder": (True,),
        "tie_word_embeddings": (True,),
    }
    by_position = EVERY
    learned_positions = True

    vocab_size: Size
    hidden_size: Size = called("d_model")
    num_hidden_layers: Depth = called("encoder_layers")
    num_attention_heads: Size = called("encoder_attention_heads")
    encoder_ffn_dim: Size
    decoder_layers: Depth
    decoder_attention_heads: Size
    decoder_ffn_dim: Size
    max_position_embeddings: Size = 1024
    hidden_act: Activation = called("activation_function", "gelu")
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    activation_dropout: Probability = 0.0
    classifier_dropout: Probability = 0.0

    @property
    def depth(self) -> int:
        return self.num_hidden_layers + self.decoder_layers

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for heads in (self.num_attention_heads, self.decoder_attention_heads):
            if self.hidden_size % heads:
                raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of {heads} attention heads")
        return self


SPECS = {"bart": BartSpec}


class _Sized(Protocol):
    """What attention reads of a spec."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def attention_dropout(self) -> float: ...


class MultiHeadAttention:
    """Queries of one sequence over keys and values of the same or another."""

    def __init__(self, name: str, heads: int, causal: bool, spec: _Sized, build: Builder):
        size = spec.hidden_size
        self.heads = heads
        self.k_proj = build.linear(name + ".k_proj", size, size, bias=True)
        self.v_proj = build.linear(name + ".v_proj", size, size, bias=True)
        self.q_proj = build.linear(name + ".q_proj", size, size, bias=True)
        self.out_proj = build.linear(name + ".out_proj", size, size, bias=True)
        self.attend = Attention(build.attention, False, spec.attention_dropout, cast_back=False, causal=causal)

    def __call__(self, hidden: Tensor, other: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        q = transpose(reshape(self.q_proj(hidden), self._by_head(hidden)), 1, 2)
        k = self.k_proj(other)
        v = self.v_proj(other)
        k = transpose(reshape(k, self._by_head(other)), 1, 2)
        v = transpose(reshape(v, self._by_head(other)), 1, 2)
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, hidden.shape)
        out = self.out_proj(out)
        return out, weights

    def _by_head(self, x: Tensor) -> tuple[int, int, int, int]:
        batch, tokens, size = x.shape
        return batch, tokens, self.heads, size // self.heads


class Layer:
    """A layer of the encoder; with attention to what the encoder made, one of the decoder."""

    own = 1

    def __init__(self, decodes: bool, spec: BartSpec, build: Builder):
        size, heads, ffn = spec.hidden_size, spec.num_attention_heads, spec.encoder_ffn_dim
        if decodes:
            heads, ffn = spec.decoder_attention_heads, spec.decoder_ffn_dim
        self.decodes, self.half = decodes, build.dtype is dtypes.float16 and not decodes
        self.self_attn = MultiHeadAttention("self_attn", heads, decodes, spec, build)
        self.self_attn_norm = build.layer_norm("self_attn_layer_norm", size)
        self.encoder_attn = MultiHeadAttention("encoder_attn", heads, False, spec, build) if decodes else None
        self.encoder_attn_norm = build.layer_norm("encoder_attn_layer_norm", size) if decodes else None
        self.fc1 = build.linear("fc1", size, ffn, bias=True)
        self.fc2 = build.linear("fc2", ffn, size, bias=True)
        self.final_norm = build.layer_norm("final_layer_norm", size)
        self.act = ACTIVATIONS[spec.hidden_act]
        self.dropout, self.activation_dropout = spec.dropout, spec.activation_dropout

    def __call__(self, hidden: Tensor, mask: Tensor | None = None, encoded: Tensor | None = None) -> Tensor:
        residual = hidden
        out, _ = self.self_attn(hidden, hidden, mask)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        out = self.self_attn_norm(out)
        if encoded is not None and self.encoder_attn is not None and self.encoder_attn_norm is not None:
            residual = out
            out, _ = self.encoder_attn(out, encoded, None)
            out = dropout(out, self.dropout)
            out = add(residual, out)
            out = self.encoder_attn_norm(out)
        residual = out
        out = self.act(self.fc1(out))
        out = dropout(out, self.activation_dropout)
        out = self.fc2(out)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        out = self.final_norm(out)
        if self.half:
            _all_finite(out)
        return out


def _all_finite(x: Tensor) -> None:
    """The question whether every number is finite, which holds (`torch.isfinite(x).all()`)."""
    size = empty(x.tape, x.shape, x.dtype, "abs")
    finite = empty(x.tape, x.shape, dtypes.bool_, "ne")
    same = empty(x.tape, x.shape, dtypes.bool_, "eq")
    both = empty(x.tape, x.shape, dtypes.bool_, "mul")
    del size, finite, same
    empty(x.tape, (), dtypes.bool_, "all")
    del both


class Stack:
    """Encoder or decoder: positions, a norm and layers."""

    def __init__(self, decodes: bool, words: Embedding, spec: BartSpec, build: Builder):
        name = "decoder" if decodes else "encoder"
        layers = spec.decoder_layers if decodes else spec.num_hidden_layers
        self.decodes, self.words, self.attention = decodes, words, build.attention
        self.positions = build.embedding(name + ".embed_positions", spec.max_position_embeddings + 2, spec.hidden_size)
        self.layers = build.layers(layers, lambda _: Layer(decodes, spec, build), name, f"{name}.", last=int(decodes))
        self.norm = build.layer_norm(name + ".layernorm_embedding", spec.hidden_size)
        self.dropout = spec.dropout

    def __call__(self, ids: Tensor, encoded: Tensor | None = None) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = scaled(self.words, ids)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None) if self.decodes else None
        steps = empty(tape, (1, tokens), dtypes.int64, "arange")
        places = self.positions(add_scalar(steps) if self.decodes else empty(tape, ids.shape, dtypes.int64, "add"))
        if not self.decodes:
            del steps
        hidden = add(embeds, places)
        hidden = self.norm(hidden)
        hidden = dropout(hidden, self.dropout)
        for layer in self.layers:
            hidden = layer(hidden, mask, encoded)
        return hidden


def scaled(words: Embedding, ids: Tensor) -> Tensor:
    """Embeddings, which are scaled, if only by 1 (`BartScaledWordEmbedding`)."""
    out = mul_scalar(Embedding(words.weight)(ids))
    if words.require_grad and ids.tape.grad_enabled:
        out.requires_grad = True
    return out


class Bart:
    """The body of the model. `stack`: makes its encoder and its decoder."""

    stack: Callable[[bool, Embedding, Any, Builder], Callable[..., Tensor]] = Stack

    def __init__(self, spec: BartSpec, build: Builder):
        refuse_quantization(build, spec.model_type)
        self.shared = build.embedding("shared", spec.vocab_size, spec.hidden_size)
        self.encoder = self.stack(False, self.shared, spec, build)
        self.decoder = self.stack(True, self.shared, spec, build)

    def encode(self, ids: Tensor) -> Tensor:
        return self.encoder(ids)

    def decode(self, targets: Tensor, encoded: Tensor) -> Tensor:
        return self.decoder(targets, encoded)


class Predictions:
    """The output layer, and a bias that is not trained."""

    def __init__(self, spec: BartSpec, build: Builder):
        self.lm_head = build.head(spec.hidden_size, spec.vocab_size, tied=True)
        self.bias = build.buffer("final_logits_bias", (1, spec.vocab_size), build.dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        logits = self.lm_head(hidden)
        return add(logits, self.bias)


HEADS: dict[str, Head] = {
    "seq2seq-lm": lambda spec, build: Seq2SeqLM(Bart(spec, build), Predictions(spec, build)),
    "sequence-classification": lambda spec, build: Seq2SeqClassification(
        Bart(spec, build), ClassificationHead(spec.hidden_size, spec.classifier_dropout, build)
    ),
}
