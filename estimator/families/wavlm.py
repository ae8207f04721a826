"""WavLM: wav2vec 2.0 with attention that has a bias of relative positions, which each layer gates by what it hears.

After transformers' modeling_wavlm.py (5.23), whose attention is torch's `multi_head_attention_forward`: it takes the weights of
its linear layers without calling them.
"""

from __future__ import annotations

from typing import Any, Literal

from estimator.families.build import Builder
from estimator.families.encoders import refuse_quantization
from estimator.families.heads import Head
from estimator.families.layers import Layers
from estimator.families.relative import in_buckets
from estimator.families.siglip_pooling import bypassed
from estimator.families.spec import Size
from estimator.families.wav2vec2 import CTC, AudioClassification, Layer, Wav2Vec2
from estimator.families.wav2vec2_spec import Wav2Vec2Spec
from estimator.tape import dtypes
from estimator.tape.matmul import baddbmm, bmm, linear
from estimator.tape.pointwise import add, add_scalar, dropout, mul, mul_scalar, sigmoid, softmax
from estimator.tape.reduction import mean, sum_dim
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, permute, repeat, reshape, split, transpose, unsqueeze


class WavLMSpec(Wav2Vec2Spec):
    """`num_buckets` of distances up to `max_bucket_distance`."""

    modelled = Wav2Vec2Spec.modelled | {"adapter_attn_dim": (None,)}
    attentions = ("eager",)

    num_buckets: Size = 320
    max_bucket_distance: Size = 800
    ctc_loss_reduction: Literal["sum", "mean"] = "mean"


SPECS = {"wavlm": WavLMSpec}


class GatedAttention:
    """`WavLMAttention`. The first layer makes the bias, and the others are handed it."""

    def __init__(self, first: bool, spec: WavLMSpec, build: Builder):
        size = spec.hidden_size
        self.heads, self.head_dim, self.dropout = (
            spec.num_attention_heads,
            size // spec.num_attention_heads,
            spec.attention_dropout,
        )
        self.constant = build.parameter("attention.gru_rel_pos_const", (1, self.heads, 1, 1))
        made = [bypassed(build, f"attention.{name}_proj", size, size) for name in ("k", "v", "q", "out")]
        (self.k, self.v, self.q, self.out), self.not_called = [own for own, _ in made], [module for _, module in made]
        self.gate = build.linear("attention.gru_rel_pos_linear", self.head_dim, 8, True)
        table = "attention.rel_attn_embed"
        self.table = build.embedding(table, spec.num_buckets, self.heads, first=False) if first else None

    def __call__(self, hidden: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The output, weights, and the bias [batch x heads, frames, frames]."""
        batch, frames, _ = hidden.shape
        bias = self._bias(hidden) if bias is None else bias
        heard = permute(reshape(hidden, (batch, frames, self.heads, -1)), (0, 2, 1, 3))
        asked = self.gate(heard)
        asked = sum_dim(reshape(asked, (*heard.shape[:-1], 2, 4)), -1)
        a, b = split(sigmoid(asked), (1, 1), 3)
        gate = add_scalar(mul(a, add_scalar(mul(b, self.constant))))
        gated = mul(reshape(gate, (batch * self.heads, -1, 1)), bias)
        gated = reshape(gated, (-1, frames, frames))
        out, weights = self._attend(hidden, gated)
        del heard, asked, a, b, gate, gated
        return out, weights, bias

    def _bias(self, hidden: Tensor) -> Tensor:
        assert self.table is not None
        batch, frames, _ = hidden.shape
        values = self._values(hidden, frames)
        return reshape(repeat(unsqueeze(values, 0), batch), (batch * self.heads, frames, frames))

    def _values(self, hidden: Tensor, frames: int) -> Tensor:
        """A number for each head and pair of frames."""
        assert self.table is not None
        places = [empty(hidden.tape, (frames,), dtypes.int64, "arange") for _ in ("queries", "keys")]
        relative = empty(hidden.tape, (frames, frames), dtypes.int64, "sub")
        buckets = in_buckets(relative, causal=False, holds=True, late=True)
        values = self.table(buckets)
        del places
        return permute(values, (2, 0, 1))

    def _attend(self, hidden: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        biases = cat([layer.bias for layer in (self.q, self.k, self.v) if layer.bias is not None], 0)
        out, weights = self._forward(transpose(hidden, 0, 1), bias, biases)
        return transpose(out, 0, 1), weights

    def _forward(self, hidden: Tensor, bias: Tensor, biases: Tensor) -> tuple[Tensor, Tensor]:
        """`multi_head_attention_forward`, of [frames, batch, size]; the weights are averaged over heads."""
        frames, batch, size = hidden.shape
        each = (frames, batch * self.heads, self.head_dim)
        b_q, b_k, b_v = split(biases, (size,) * 3, 0)
        q = linear(hidden, self.q.weight, b_q)
        k = linear(hidden, self.k.weight, b_k)
        v = linear(hidden, self.v.weight, b_v)
        q = transpose(reshape(q, each), 0, 1)
        k = transpose(reshape(k, each), 0, 1)
        v = transpose(reshape(v, each), 0, 1)
        scaled = mul_scalar(q)
        weights = baddbmm(bias, scaled, transpose(k, 1, 2), scaled=False)
        del scaled, k
        weights = softmax(weights)
        weights = dropout(weights, self.dropout)
        out = bmm(weights, v)
        del v
        out = reshape(transpose(out, 0, 1), (frames * batch, size))
        out = linear(out, self.out.weight, self.out.bias)
        out = reshape(out, (frames, batch, size))
        weights = mean(reshape(weights, (batch, self.heads, frames, frames)), 1)
        del q, b_q, b_k, b_v
        return out, weights


class BiasedLayer(Layer):
    """A layer that hands on the bias (`WavLMEncoderLayer`)."""

    def __call__(self, hidden: Tensor, bias: Tensor | None = None) -> Any:
        residual = hidden
        out = self.layer_norm(hidden) if self.stable else hidden
        out, weights, bias = self.attention(out, bias)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        if self.stable:
            out = add(out, self.feed_forward(self.final_layer_norm(out)))
        else:
            out = self.layer_norm(out)
            out = add(out, self.feed_forward(out))
            out = self.final_layer_norm(out)
        del weights
        return out, bias


class WavLM(Wav2Vec2):
    """The body of the model."""

    def _stack(self, spec: Any, build: Builder) -> Layers:
        refuse_quantization(build, spec.model_type)
        kinds = [True] + [False] * (spec.num_hidden_layers - 1)

        def make(first: bool) -> BiasedLayer:
            return BiasedLayer(spec, build, GatedAttention(first, spec, build))

        return build.layers(kinds, make, "encoder.layers", "encoder.", first=2, last=1)

    def _encoded(self, hidden: Tensor) -> Tensor:
        places = self.positions(hidden)
        out = add(hidden, places)
        out = out if self.spec.do_stable_layer_norm else self.layer_norm(out)
        out = dropout(out, self.spec.hidden_dropout)
        bias = None
        for layer in self.layers:
            out, bias = layer(out, bias)
        out = self.layer_norm(out) if self.spec.do_stable_layer_norm else out
        del places, bias
        return out


HEADS: dict[str, Head] = {
    "ctc": lambda spec, build: CTC(spec, build, WavLM),
    "audio-classification": lambda spec, build: AudioClassification(spec, build, WavLM),
}
