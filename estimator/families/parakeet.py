"""Parakeet: a spectrogram's frames, eight made one by convolutions, and conformer layers, of which each has attention by
relative places and a convolution over time between two halves of a feed-forward layer.

After transformers' modeling_parakeet.py (5.23), with its CTC head. A batch is so many clips of one length, with the mask that its
feature extractor gives; layers that are left out at random (`layerdrop`) are all there, as in the steps that take most.
"""

from __future__ import annotations

from estimator.contract.errors import InvalidJob
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.heads import Batch
from estimator.families.model_output import Held
from estimator.families.modules import ACTIVATIONS
from estimator.families.parakeet_spec import EncoderSpec, ParakeetSpec
from estimator.tape import dtypes
from estimator.tape.ctc import ctc
from estimator.tape.dtypes import DType
from estimator.tape.matmul import matmul
from estimator.tape.normalization import batch_norm
from estimator.tape.pointwise import add, dropout, glu, mul_, mul_scalar, relu, to
from estimator.tape.selection import masked_fill, masked_fill_
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, narrow, pad, permute, reshape, transpose, unsqueeze

SPECS = {"parakeet_ctc": ParakeetSpec}


class FeedForward:
    def __init__(self, name: str, spec: EncoderSpec, build: Builder):
        self.linear1 = build.linear(name + ".linear1", spec.hidden_size, spec.intermediate_size, spec.attention_bias)
        self.linear2 = build.linear(name + ".linear2", spec.intermediate_size, spec.hidden_size, spec.attention_bias)
        self.act, self.between = ACTIVATIONS[spec.hidden_act], spec.activation_dropout

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self.act(self.linear1(hidden))
        out = dropout(out, self.between)
        return self.linear2(out)


class SelfAttention:
    """Scores of what is where, added to those of what is said, as a mask (`ParakeetEncoderAttention`)."""

    def __init__(self, spec: EncoderSpec, build: Builder):
        size, bias = spec.hidden_size, spec.attention_bias
        self.heads, self.head_dim = spec.num_attention_heads, size // spec.num_attention_heads
        shape = self.heads, self.head_dim
        self.bias_u, self.bias_v = (build.parameter(f"self_attn.bias_{name}", shape) for name in ("u", "v"))
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            build.linear(f"self_attn.{name}_proj", size, size, bias) for name in ("q", "k", "v", "o")
        )
        self.relative_k_proj = build.linear("self_attn.relative_k_proj", size, size)
        self.attend = Attention(build.attention, True, spec.attention_dropout, causal=False)

    def __call__(self, hidden: Tensor, mask: Tensor, places: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, frames, _ = hidden.shape
        heads = (batch, frames, -1, self.head_dim)
        q = transpose(reshape(self.q_proj(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_proj(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        said = add(q, reshape(self.bias_u, (1, self.heads, 1, self.head_dim)))
        where = add(q, reshape(self.bias_v, (1, self.heads, 1, self.head_dim)))
        relative = self.relative_k_proj(places)
        relative = reshape(relative, (batch, -1, self.heads, self.head_dim))
        scores = matmul(where, permute(relative, (0, 2, 3, 1)))
        scores = _shifted(scores)
        scores = narrow(scores, -1, frames)
        scores = mul_scalar(scores)
        scores = masked_fill_(scores, empty(hidden.tape, mask.shape, dtypes.bool_, "logical_not"))
        out, weights = self.attend(said, k, v, scores)
        out = contiguous(reshape(out, (batch, frames, -1)))
        out = self.o_proj(out)
        return out, weights


def _shifted(scores: Tensor) -> Tensor:
    """Each query's scores by how far apart, moved to where its keys are (`_rel_shift`)."""
    batch, heads, queries, places = scores.shape
    moved = pad(scores, 3, 1, 0)
    moved = reshape(moved, (batch, heads, -1, queries))
    return reshape(narrow(moved, 2, places), scores.shape)


class ConvolutionModule:
    def __init__(self, spec: EncoderSpec, build: Builder):
        size, kernel, bias = spec.hidden_size, spec.conv_kernel_size, spec.convolution_bias
        self.pointwise_conv1 = build.convolution("conv.pointwise_conv1", size, 2 * size, (1,), bias=bias)
        self.depthwise_conv = build.convolution("conv.depthwise_conv", 1, size, (kernel,), padding=kernel // 2, bias=bias)
        self.scale = [build.parameter(f"conv.norm.{name}", (size,)) for name in ("weight", "bias")]
        mean, variance = (build.buffer(f"conv.norm.running_{name}", (size,), build.dtype) for name in ("mean", "var"))
        self.running = mean, variance
        self.counted = build.buffer("conv.norm.num_batches_tracked", (), dtypes.int64)
        self.pointwise_conv2 = build.convolution("conv.pointwise_conv2", size, size, (1,), bias=bias)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        out = transpose(hidden, 1, 2)
        out = self.pointwise_conv1(out)
        out = glu(out, 1)
        silent = _all_rows(mask)
        out = masked_fill(out, silent)
        out = self.depthwise_conv(out)
        weight, bias = self.scale
        out = batch_norm(out, weight, bias, self.running)
        out = self.act(out)
        out = self.pointwise_conv2(out)
        del silent
        return transpose(out, 1, 2)


def _all_rows(mask: Tensor) -> Tensor:
    """Which frames see nothing, [batch, 1, frames]."""
    inverse = empty(mask.tape, mask.shape, dtypes.bool_, "bitwise_not")
    silent = empty(mask.tape, (*mask.shape[:2], mask.shape[3]), dtypes.bool_, "all")
    del inverse
    return silent


class Block:
    def __init__(self, spec: EncoderSpec, build: Builder):
        self.feed_forward1 = FeedForward("feed_forward1", spec, build)
        self.self_attn = SelfAttention(spec, build)
        self.conv = ConvolutionModule(spec, build)
        self.feed_forward2 = FeedForward("feed_forward2", spec, build)
        names = "norm_feed_forward1", "norm_self_att", "norm_conv", "norm_feed_forward2", "norm_out"
        self.norms = [build.layer_norm(name, spec.hidden_size) for name in names]

    def __call__(self, hidden: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        before_first, before_attention, before_conv, before_second, last = self.norms
        out = self.feed_forward1(before_first(hidden))
        out = add(hidden, mul_scalar(out))
        normed = before_attention(out)
        attended, _ = self.self_attn(normed, mask, places)
        out = add(out, attended)
        convolved = self.conv(before_conv(out), mask)
        out = add(out, convolved)
        second = self.feed_forward2(before_second(out))
        out = add(out, mul_scalar(second))
        out = last(out)
        del normed, attended, convolved, second
        return out


class Subsampling:
    """Convolutions that halve time and frequencies; frames beyond each clip's end are zeros after each."""

    def __init__(self, spec: EncoderSpec, build: Builder):
        name, channels = "encoder.subsampling.layers", spec.subsampling_conv_channels
        side = spec.subsampling_conv_kernel_size
        kernel, padding = (side, side), side // 2
        self.first = build.convolution(f"{name}.0", 1, channels, kernel, 2, padding)
        self.others = [
            (
                build.convolution(f"{name}.{3 * i + 2}", 1, channels, kernel, 2, padding),
                build.convolution(f"{name}.{3 * i + 3}", channels, channels, (1, 1)),
            )
            for i in range(spec.halvings - 1)
        ]
        left = spec.num_mel_bins // spec.subsampling_factor
        self.linear = build.linear("encoder.subsampling.linear", channels * left, spec.hidden_size, True)

    def __call__(self, features: Tensor) -> Tensor:
        lengths = empty(features.tape, features.shape[:1], dtypes.int64, "sum")
        hidden = unsqueeze(features, 1)
        hidden, shown = _silenced(self.first(hidden))
        hidden = relu(hidden)
        for depthwise, pointwise in self.others:
            hidden, shown = _silenced(depthwise(hidden))
            hidden, shown = _silenced(pointwise(hidden))
            hidden = relu(hidden)
        hidden = reshape(transpose(hidden, 1, 2), (hidden.shape[0], hidden.shape[2], -1))
        hidden = self.linear(hidden)
        del lengths, shown
        return hidden


def _silenced(hidden: Tensor) -> tuple[Tensor, Tensor]:
    """With zeros in frames beyond the end, and which are not."""
    numbers = empty(hidden.tape, (hidden.shape[2],), dtypes.int64, "arange")
    shown = empty(hidden.tape, (hidden.shape[0], hidden.shape[2]), dtypes.bool_, "lt")
    del numbers
    return mul_(hidden, unsqueeze(unsqueeze(shown, 1), 3)), shown


class Encoder:
    def __init__(self, spec: EncoderSpec, build: Builder):
        self.spec = spec
        self.subsampling = Subsampling(spec, build)
        self.frequencies = build.buffer("encode_positions.inv_freq", (spec.hidden_size // 2,), dtypes.float32)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Block(spec, build), "encoder.layers", "encoder.")

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Last hidden states, [clips, frames, width], and which frames are of a clip."""
        hidden = self.subsampling(features)
        hidden = mul_scalar(hidden)
        places = self._places(hidden)
        hidden = dropout(hidden, self.spec.dropout)
        places = dropout(places, self.spec.dropout_positions)
        batch, frames, _ = hidden.shape
        shown = empty(hidden.tape, (batch, frames), dtypes.bool_, "lt")
        mask = empty(hidden.tape, (batch, 1, frames, frames), dtypes.bool_, "bitwise_and")
        for layer in self.layers:
            hidden = layer(hidden, mask, places)
        told = empty(hidden.tape, shown.shape, dtypes.int32, "_to_copy")
        del shown, mask, places
        return hidden, told

    def _places(self, hidden: Tensor) -> Tensor:
        """Sines and cosines of how far frames are apart (`ParakeetEncoderRelPositionalEncoding`)."""
        tape, (batch, frames, size) = hidden.tape, hidden.shape
        apart, half = 2 * frames - 1, size // 2
        numbers = empty(tape, (apart,), dtypes.int64, "arange")
        angles = empty(tape, (apart, half), dtypes.float32, "mul")
        sines, cosines = (empty(tape, (batch, apart, half), dtypes.float32, name) for name in ("sin", "cos"))
        both = empty(tape, (batch, apart, size), dtypes.float32, "stack")
        made = to(both, hidden.dtype)
        del numbers, angles, sines, cosines, both
        return made


class CTC:
    """A label or nothing in each frame (`ParakeetForCTC`)."""

    def __init__(self, spec: ParakeetSpec, build: Builder):
        self.spec, self.audio = spec, build.audio
        self.encoder = Encoder(spec.encoder_config, build)
        self.ctc_head = build.convolution("ctc_head", spec.hidden_size, spec.vocab_size, (1,))

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Spectrograms, which of their frames are of a clip, and labels."""
        assert self.audio is not None
        frames, written = self.spec.spectrogram(self.audio.samples), self.spec.frames(self.audio.samples)
        if batch.target_tokens > written:
            said = f"{batch.target_tokens} labels are more than the {written} frames of {self.audio.seconds:g} s"
            raise InvalidJob(f"{said}: write fewer, or longer clips", "training.target_length")
        features = empty(tape, (batch.sequences, frames, self.spec.encoder_config.num_mel_bins), dtype, "input_features")
        mask = empty(tape, features.shape[:2], dtypes.bool_, "attention_mask")
        return features, mask, empty(tape, (batch.sequences, batch.target_tokens), dtypes.int64, "labels")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        features, _, labels = inputs
        hidden, told = self.encoder.forward(features)
        with features.tape.losing():
            logits = transpose(self.ctc_head(transpose(hidden, 1, 2)), 1, 2)
            lengths = empty(features.tape, features.shape[:1], dtypes.int64, "sum")
            loss = ctc(logits, labels, self.spec.ctc_loss_reduction, self.spec.ctc_zero_infinity)
        del hidden, told, lengths
        return loss, logits


HEADS = {"ctc": CTC}
