"""Whisper: convolutions over a spectrogram, an encoder over its frames, a decoder that writes what was said.

After transformers' modeling_whisper.py (5.23). A batch is so many spectrograms of full length (`input_features`), and as many
texts of `target_length` tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import model_validator

from estimator.contract.errors import InvalidJob
from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention
from estimator.families.heads import Batch
from estimator.families.model_output import Held
from estimator.families.modules import ACTIVATIONS, Embedding, Linear
from estimator.families.spec import Activation, Depth, ModelSpec, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.checkpoint import EVERY
from estimator.tape.dtypes import DType
from estimator.tape.loss import cross_entropy
from estimator.tape.loss import embedding as rows
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, add_scalar, clamp, dropout, gelu, mul_scalar, softmax
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, index, reshape, transpose


class EncoderSpec(ModelSpec):
    """What Whisper's encoder says, and those of other models that are made like it. `max_source_positions`: frames."""

    hidden_size: Size = called("d_model")
    num_hidden_layers: Depth = called("encoder_layers")
    encoder_attention_heads: Size
    encoder_ffn_dim: Size
    num_mel_bins: Size = 80
    max_source_positions: Size = 1500
    activation_function: Activation = "gelu"
    dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    activation_dropout: Probability = 0.0


class WhisperSpec(EncoderSpec):
    """`num_hidden_layers` are the encoder's; `max_position_embeddings` follows: the encoder's frames."""

    modelled = {
        "encoder_layerdrop": (0,),
        "decoder_layerdrop": (0,),
        "apply_spec_augment": (False,),
        "is_encoder_decoder": (True,),
    }
    by_position = EVERY
    unasked_embeddings = True

    decoder_layers: Depth
    decoder_attention_heads: Size
    decoder_ffn_dim: Size
    vocab_size: Size
    max_target_positions: Size = 448
    tie_word_embeddings: bool = True

    @model_validator(mode="before")
    @classmethod
    def _frames(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {**given, "max_position_embeddings": given.get("max_source_positions", 1500)}

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for heads in (self.encoder_attention_heads, self.decoder_attention_heads):
            if self.hidden_size % heads:
                raise ValueError(f"d_model {self.hidden_size} is not a multiple of {heads} heads")
        return self

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        heads, size = self.decoder_attention_heads, self.hidden_size // self.decoder_attention_heads
        own, cross = attention(heads, size), CacheLayer("cross", heads, size, size, self.max_source_positions)
        return (own, cross) * self.decoder_layers

    def config(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude={"max_position_embeddings"})

    @property
    def depth(self) -> int:
        return self.num_hidden_layers + self.decoder_layers

    @property
    def most_targets(self) -> int:
        return self.max_target_positions


SPECS = {"whisper": WhisperSpec}


class WhisperAttention:
    def __init__(self, spec: EncoderSpec, build: Builder, name: str, heads: int, causal: bool = False):
        size = spec.hidden_size
        self.heads, self.head_dim = heads, size // heads
        self.dropout = spec.attention_dropout
        self.k_proj = build.linear(name + ".k_proj", size, size)
        self.v_proj = build.linear(name + ".v_proj", size, size, True)
        self.q_proj = build.linear(name + ".q_proj", size, size, True)
        self.out_proj = build.linear(name + ".out_proj", size, size, True)
        self.eager = build.attention == "eager"
        self.attend = Attention(build.attention, dropout=spec.attention_dropout, causal=causal)

    def __call__(self, hidden: Tensor, source: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Queries of `hidden`, keys and values of `source`."""
        batch, tokens, _ = hidden.shape
        q = self._split(mul_scalar(self.q_proj(hidden)))
        k = self._split(self.k_proj(source))
        v = self._split(self.v_proj(source))
        out, weights = self._eager(q, k, v, mask) if self.eager else self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (batch, tokens, -1)))
        out = self.out_proj(out)
        return out, weights

    def _split(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        return contiguous(transpose(reshape(x, (batch, tokens, self.heads, self.head_dim)), 1, 2))

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """By hand, in whatever type softmax gives."""
        weights = mul_scalar(matmul(q, transpose(k, 2, 3)))
        if mask is not None:
            weights = add(weights, mask)
        weights = softmax(weights)
        weights = dropout(weights, self.dropout)
        out = matmul(weights, v)
        out = contiguous(transpose(out, 1, 2))
        return out, weights


class EncoderLayer:
    def __init__(self, spec: EncoderSpec, build: Builder):
        self.dropout, self.activation_dropout = spec.dropout, spec.activation_dropout
        self.activation = ACTIVATIONS[spec.activation_function]
        self.self_attn = WhisperAttention(spec, build, "self_attn", spec.encoder_attention_heads)
        self.self_attn_layer_norm = build.layer_norm("self_attn_layer_norm", spec.hidden_size)
        self.fc1 = build.linear("fc1", spec.hidden_size, spec.encoder_ffn_dim, True)
        self.fc2 = build.linear("fc2", spec.encoder_ffn_dim, spec.hidden_size, True)
        self.final_layer_norm = build.layer_norm("final_layer_norm", spec.hidden_size)

    def __call__(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        residual = hidden
        out = self.self_attn_layer_norm(hidden)
        out, _ = self.self_attn(out, out, mask)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        residual = out
        out = self.final_layer_norm(out)
        out = self.activation(self.fc1(out))
        out = dropout(out, self.activation_dropout)
        out = self.fc2(out)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        if out.dtype is dtypes.float16:
            out = clamp(out)
        return out


class DecoderLayer:
    def __init__(self, spec: WhisperSpec, build: Builder):
        self.dropout, self.activation_dropout = spec.dropout, spec.activation_dropout
        self.activation = ACTIVATIONS[spec.activation_function]
        self.self_attn = WhisperAttention(spec, build, "self_attn", spec.decoder_attention_heads, causal=True)
        self.self_attn_layer_norm = build.layer_norm("self_attn_layer_norm", spec.hidden_size)
        self.encoder_attn = WhisperAttention(spec, build, "encoder_attn", spec.decoder_attention_heads)
        self.encoder_attn_layer_norm = build.layer_norm("encoder_attn_layer_norm", spec.hidden_size)
        self.fc1 = build.linear("fc1", spec.hidden_size, spec.decoder_ffn_dim, True)
        self.fc2 = build.linear("fc2", spec.decoder_ffn_dim, spec.hidden_size, True)
        self.final_layer_norm = build.layer_norm("final_layer_norm", spec.hidden_size)

    def __call__(self, hidden: Tensor, mask: Tensor | None, encoded: Tensor) -> Tensor:
        residual = hidden
        out = self.self_attn_layer_norm(hidden)
        out, _ = self.self_attn(out, out, mask)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        residual = out
        out = self.encoder_attn_layer_norm(out)
        out, _ = self.encoder_attn(out, encoded, None)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        residual = out
        out = self.final_layer_norm(out)
        out = self.activation(self.fc1(out))
        out = dropout(out, self.activation_dropout)
        out = self.fc2(out)
        out = dropout(out, self.dropout)
        return add(residual, out)


class Encoder:
    def __init__(self, spec: WhisperSpec, build: Builder):
        size = spec.hidden_size
        self.dropout = spec.dropout
        self.conv1 = build.convolution("encoder.conv1", spec.num_mel_bins, size, (3,), padding=1)
        self.conv2 = build.convolution("encoder.conv2", size, size, (3,), stride=2, padding=1)
        self.embed_positions = build.parameter(
            "encoder.embed_positions.weight", (spec.max_source_positions, size), trainable=False
        )
        self.layers = build.layers(spec.num_hidden_layers, lambda _: EncoderLayer(spec, build), "encoder.layers", "encoder.")
        self.layer_norm = build.layer_norm("encoder.layer_norm", size)

    def forward(self, features: Tensor) -> Tensor:
        embeds = gelu(self.conv1(features))
        embeds = gelu(self.conv2(embeds))
        embeds = transpose(embeds, 1, 2)
        positions = empty(features.tape, (self.embed_positions.shape[0],), dtypes.int64, "arange")
        hidden = add(embeds, rows(self.embed_positions, positions))
        hidden = dropout(hidden, self.dropout)
        for layer in self.layers:
            hidden = layer(hidden)
        hidden = self.layer_norm(hidden)
        del embeds
        return hidden


class Decoder:
    def __init__(self, spec: WhisperSpec, build: Builder):
        self.attention = build.attention
        self.dropout = spec.dropout
        self.weight = build.parameter("decoder.embed_tokens.weight", (spec.vocab_size, spec.hidden_size), tokens=True)
        self.embed_tokens = Embedding(self.weight)
        self.embed_positions = build.parameter("decoder.embed_positions.weight", (spec.max_target_positions, spec.hidden_size))
        build.embeddings += ["decoder.embed_tokens", "decoder.embed_positions"]
        # backward makes the gradient of the encoder's output in the last layer, the others add to it
        self.layers = build.layers(spec.decoder_layers, lambda _: DecoderLayer(spec, build), "decoder.layers", "decoder.", last=1)
        self.layer_norm = build.layer_norm("decoder.layer_norm", spec.hidden_size)

    def forward(self, ids: Tensor, encoded: Tensor) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = self.embed_tokens(ids)
        places = add_scalar(empty(tape, (tokens,), dtypes.int64, "arange"))
        places = empty(tape, (batch, tokens), dtypes.int64, "repeat")
        positions = index(self.embed_positions, (places,), embeds.shape)
        hidden = add(embeds, positions)
        hidden = dropout(hidden, self.dropout)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None)
        for layer in self.layers:
            hidden = layer(hidden, mask, encoded)
        hidden = self.layer_norm(hidden)
        del positions
        return hidden


class ConditionalGeneration:
    """Encoder and decoder with the output layer (`WhisperForConditionalGeneration`); the loss is computed in the model's type."""

    def __init__(self, spec: WhisperSpec, build: Builder):
        self.spec = spec
        self.encoder = Encoder(spec, build)
        self.decoder = Decoder(spec, build)
        tied = spec.tie_word_embeddings
        self.proj_out = Linear(self.decoder.weight, None) if tied else build.head(spec.hidden_size, spec.vocab_size, False)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        spec, rows = self.spec, batch.sequences
        if batch.target_tokens > spec.max_target_positions:
            said = f"{batch.target_tokens} tokens are more than the model's {spec.max_target_positions} learned positions"
            raise InvalidJob(said, "training.target_length")
        features = empty(tape, (rows, spec.num_mel_bins, 2 * spec.max_source_positions), dtype, "input_features")
        return features, empty(tape, (rows, batch.target_tokens), dtypes.int64, "labels")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        features, labels = inputs
        ids = _shifted_right(labels)
        encoded = self.encoder.forward(features)
        hidden = self.decoder.forward(ids, encoded)
        with labels.tape.losing():
            logits = self.proj_out(hidden)
            loss = cross_entropy(reshape(logits, (-1, logits.shape[-1])), reshape(labels, (-1,)))
        return loss, (logits, encoded)


def _shifted_right(labels: Tensor) -> Tensor:
    """The decoder's input (`shift_tokens_right`)."""
    batch, tokens = labels.shape
    shifted = empty(labels.tape, labels.shape, dtypes.int64, "new_zeros")
    moved = empty(labels.tape, (batch, tokens - 1), dtypes.int64, "clone")
    del moved
    padding = empty(labels.tape, labels.shape, dtypes.bool_, "eq")
    del padding
    return shifted


HEADS = {"speech-seq2seq-lm": ConditionalGeneration}
