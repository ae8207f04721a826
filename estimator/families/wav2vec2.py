"""wav2vec 2.0 and HuBERT: convolutions over samples of sound, a convolution that knows places, layers that hear all frames.

After transformers' modeling_wav2vec2.py and modeling_hubert.py (5.23). A batch is so many clips of one length; layers that are
left out at random (`layerdrop`) are all there, as in the steps that take most, and under FSDP in all.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from estimator.contract.errors import InvalidJob
from estimator.contract.job.audio import Audio
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.heads import Batch
from estimator.families.model_output import Held
from estimator.families.modules import ACTIVATIONS, Convolution, Module
from estimator.families.spec import Activation, Depth, ModelSpec, Probability, Size
from estimator.tape import dtypes
from estimator.tape.ctc import ctc
from estimator.tape.dtypes import DType
from estimator.tape.loss import cross_entropy
from estimator.tape.normalization import group_norm, weight_norm
from estimator.tape.pointwise import add, dropout, to
from estimator.tape.reduction import mean
from estimator.tape.scatter import fill_picked
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, narrow, reshape, transpose, unsqueeze


class Wav2Vec2Spec(ModelSpec):
    """What a configuration leaves out has transformers' defaults. `conv_*`: the convolutions over samples, one after another."""

    modelled = {
        "add_adapter": (False,),
        "adapter_attn_dim": (None,),
        "use_weighted_layer_sum": (False,),
        "mask_feature_prob": (0, 0.0),
        "conv_pos_batch_norm": (False,),
    }
    listens = True
    last_vllm = "none"
    why_not_vllm = "its registry has no model that writes down what it hears frame by frame"
    in_sglang = "none"
    why_not_sglang = "it has no model that writes down what it hears frame by frame"
    holds_normed: ClassVar[bool] = True
    """Whether what is held of the convolutions to the end is normed."""

    hidden_size: Size = 768
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    vocab_size: Size = 32
    hidden_act: Activation = "gelu"
    hidden_dropout: Probability = 0.1
    activation_dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    feat_proj_dropout: Probability = 0.0
    final_dropout: Probability = 0.1
    layerdrop: Probability = 0.1
    feat_extract_norm: Literal["group", "layer"] = "group"
    feat_extract_activation: Activation = "gelu"
    conv_dim: tuple[Size, ...] = (512,) * 7
    conv_stride: tuple[Size, ...] = (5, 2, 2, 2, 2, 2, 2)
    conv_kernel: tuple[Size, ...] = (10, 3, 3, 3, 3, 2, 2)
    conv_bias: bool = False
    num_conv_pos_embeddings: Size = 128
    num_conv_pos_embedding_groups: Size = 16
    do_stable_layer_norm: bool = False
    apply_spec_augment: bool = True
    mask_time_prob: Probability = 0.05
    mask_time_length: Size = 10
    mask_time_min_masks: int = 2
    ctc_loss_reduction: Literal["sum", "mean"] = "sum"
    ctc_zero_infinity: bool = False
    classifier_proj_size: Size = 256

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} heads")
        if not 1 <= len(self.conv_dim) == len(self.conv_stride) == len(self.conv_kernel) <= 64:
            raise ValueError("conv_dim, conv_stride and conv_kernel say one number of each convolution, of 64 at most")
        if self.hidden_size % self.num_conv_pos_embedding_groups:
            raise ValueError(f"hidden_size {self.hidden_size} has no {self.num_conv_pos_embedding_groups} groups of one size")
        return self

    @property
    def depth(self) -> int:
        return len(self.conv_dim) + self.num_hidden_layers

    def config(self) -> dict[str, Any]:
        """With no layer left out."""
        return {**self.model_dump(mode="json", exclude={"max_position_embeddings"}), "layerdrop": 0.0}

    def frames(self, samples: int) -> int:
        """What the convolutions make of so many samples (`_get_feat_extract_output_lengths`)."""
        for kernel, stride in zip(self.conv_kernel, self.conv_stride, strict=True):
            samples = (samples - kernel) // stride + 1 if samples >= kernel else 0
        return samples

    def audio_tokens(self, audio: Audio) -> int:
        return self.frames(audio.samples)

    def masked(self, frames: int) -> int:
        """Frames of a clip that are masked at most: spans of one length, where none overlap (`_compute_mask_indices`)."""
        spans = max(math.ceil(self.mask_time_prob * frames / self.mask_time_length), self.mask_time_min_masks)
        return min(spans, frames // self.mask_time_length) * self.mask_time_length


class HubertSpec(Wav2Vec2Spec):
    holds_normed = False

    feat_proj_layer_norm: bool = True


SPECS = {"wav2vec2": Wav2Vec2Spec, "hubert": HubertSpec}


class ConvLayer:
    """One of the convolutions over samples; a norm in the first of each channel, or in each of all channels."""

    def __init__(self, number: int, spec: Wav2Vec2Spec, build: Builder):
        size = spec.conv_dim[number]
        before = spec.conv_dim[number - 1] if number else 1
        stride, bias = spec.conv_stride[number], spec.conv_bias
        self.conv = build.convolution("conv", before, size, (spec.conv_kernel[number],), stride, bias=bias)
        by_channel, self.channels = spec.feat_extract_norm == "group", size
        first = by_channel and not number
        self.scale = [build.parameter(f"layer_norm.{name}", (size,)) for name in ("weight", "bias")] if first else None
        self.norm = None if by_channel else build.layer_norm("layer_norm", size)
        self.act = ACTIVATIONS[spec.feat_extract_activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self.conv(to(hidden, _computed(hidden)))
        if self.scale is not None:
            weight, bias = self.scale
            out = group_norm(out, weight, bias, self.channels)
        elif self.norm is not None:
            out = transpose(out, 1, 2)
            out = self.norm(out)
            out = transpose(out, 1, 2)
        return self.act(out)


def _computed(x: Tensor) -> DType:
    """What autocast computes in: it keeps no cast of what is a view, as samples are."""
    return x.dtype if x.tape.autocast is None else x.tape.autocast.dtype


class Extractor:
    """`Wav2Vec2FeatureEncoder`: samples as frames, [batch, channels, frames]. Samples want gradients, that checkpoints work."""

    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        kinds = range(len(spec.conv_dim))  # of which each has a length of its own
        self.layers = build.layers(kinds, lambda number: ConvLayer(number, spec, build), "feature_extractor.conv_layers")

    def __call__(self, samples: Tensor) -> Tensor:
        hidden = unsqueeze(samples, 1)
        hidden.requires_grad = samples.tape.grad_enabled and not samples.tape.evaluating
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Projection:
    """`Wav2Vec2FeatureProjection`."""

    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        size = spec.conv_dim[-1]
        normed = getattr(spec, "feat_proj_layer_norm", True)
        self.holds_normed = spec.holds_normed
        self.norm = build.layer_norm("feature_projection.layer_norm", size) if normed else None
        self.projection = build.linear("feature_projection.projection", size, spec.hidden_size, True)
        self.dropout = spec.feat_proj_dropout

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the encoder gets, and what the model holds to its end."""
        out = hidden if self.norm is None else self.norm(hidden)
        held = out if self.holds_normed else hidden
        out = self.projection(out)
        return dropout(out, self.dropout), held


class Positions:
    """A convolution over many frames, in groups, whose weight is directions and lengths (`Wav2Vec2PositionalConvEmbedding`)."""

    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        size, places, name = spec.hidden_size, spec.num_conv_pos_embeddings, "encoder.pos_conv_embed.conv."
        self.bias = build.parameter(name + "bias", (size,))
        self.lengths = build.parameter(name + "parametrizations.weight.original0", (1, 1, places))
        shape = (size, size // spec.num_conv_pos_embedding_groups, places)
        self.directions = build.parameter(name + "parametrizations.weight.original1", shape)
        self.padding = places // 2
        self.more = 1 - places % 2
        self.act = ACTIVATIONS[spec.feat_extract_activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        out = transpose(hidden, 1, 2)
        out = self._convolved(out)
        if self.more:
            out = narrow(out, 2, out.shape[2] - self.more)
        out = self.act(out)
        return transpose(out, 1, 2)

    def _convolved(self, x: Tensor) -> Tensor:
        weight = weight_norm(self.lengths, self.directions)
        return Convolution(weight, self.bias, 1, self.padding, False)(x)


class SelfAttention:
    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        size = spec.hidden_size
        self.head_dim = size // spec.num_attention_heads
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (
            build.linear(f"attention.{name}_proj", size, size, True) for name in ("k", "v", "q", "out")
        )
        self.attend = Attention(build.attention, False, spec.attention_dropout, cast_back=False, causal=False)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, frames, _ = hidden.shape
        heads = (batch, frames, -1, self.head_dim)
        q = transpose(reshape(self.q_proj(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_proj(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        out, weights = self.attend(q, k, v, None)
        out = contiguous(reshape(out, (batch, frames, -1)))
        out = self.out_proj(out)
        return out, weights


class FeedForward:
    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        self.first = build.linear("feed_forward.intermediate_dense", spec.hidden_size, spec.intermediate_size, True)
        self.last = build.linear("feed_forward.output_dense", spec.intermediate_size, spec.hidden_size, True)
        self.act = ACTIVATIONS[spec.hidden_act]
        self.between, self.after = spec.activation_dropout, spec.hidden_dropout

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self.first(hidden)
        out = self.act(out)
        out = dropout(out, self.between)
        out = self.last(out)
        return dropout(out, self.after)


class Layer:
    """Norms after each block, or before it where the model is stable."""

    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        self.stable = spec.do_stable_layer_norm
        self.dropout = spec.hidden_dropout
        self.attention = SelfAttention(spec, build)
        self.layer_norm = build.layer_norm("layer_norm", spec.hidden_size)
        self.feed_forward = FeedForward(spec, build)
        self.final_layer_norm = build.layer_norm("final_layer_norm", spec.hidden_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        out = self.layer_norm(hidden) if self.stable else hidden
        out, _ = self.attention(out)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        if self.stable:
            return add(out, self.feed_forward(self.final_layer_norm(out)))
        out = self.layer_norm(out)
        out = add(out, self.feed_forward(out))
        return self.final_layer_norm(out)


class Wav2Vec2:
    """The body of the model."""

    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        self.spec = spec
        masks = spec.mask_time_prob > 0
        self.mask_embed = (
            build.parameter("masked_spec_embed", (spec.hidden_size,), read=spec.apply_spec_augment) if masks else None
        )
        self.extractor = Extractor(spec, build)
        self.projection = Projection(spec, build)
        self.positions = Positions(spec, build)
        self.layer_norm = build.layer_norm("encoder.layer_norm", spec.hidden_size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build), "encoder.layers", "encoder.")

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Last hidden states, [batch, frames, size], and what is held of the convolutions to the end."""
        features = transpose(self.extractor(samples), 1, 2)
        hidden, features = self.projection(features)
        hidden = self._masked(hidden)
        return self._encoded(hidden), features

    def _masked(self, hidden: Tensor) -> Tensor:
        """Some frames are another one, which is learned (`_mask_hidden_states`)."""
        if self.mask_embed is None or not self.spec.apply_spec_augment or hidden.tape.evaluating:
            return hidden
        batch, frames, _ = hidden.shape
        mask = empty(hidden.tape, (batch, frames), dtypes.bool_, "lift_fresh")
        return fill_picked(hidden, mask, to(self.mask_embed, hidden.dtype), batch * self.spec.masked(frames))

    def _encoded(self, hidden: Tensor) -> Tensor:
        places = self.positions(hidden)
        out = add(hidden, places)
        out = out if self.spec.do_stable_layer_norm else self.layer_norm(out)
        out = dropout(out, self.spec.hidden_dropout)
        for layer in self.layers:
            out = layer(out)
        out = self.layer_norm(out) if self.spec.do_stable_layer_norm else out
        del places
        return out


class _Heard:
    """What stands on the body gets clips."""

    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        self.spec, self.audio = spec, build.audio
        self.body = Wav2Vec2(spec, build)

    def _samples(self, tape: Tape, batch: Batch, dtype: DType) -> Tensor:
        assert self.audio is not None
        return empty(tape, (batch.sequences, self.audio.samples), dtype, "input_values")


class CTC(_Heard):
    """A label or nothing in each frame (`Wav2Vec2ForCTC`). An adapter takes its output layer for a linear layer like others."""

    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        super().__init__(spec, build)
        self.lm_head: Module = build.linear("lm_head", spec.hidden_size, spec.vocab_size, True, quantized=False)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        assert self.audio is not None
        frames = self.spec.frames(self.audio.samples)
        if batch.target_tokens > frames:
            said = f"{batch.target_tokens} labels are more than the {frames} frames of {self.audio.seconds:g} s"
            raise InvalidJob(f"{said}: write fewer, or longer clips", "training.target_length")
        labels = empty(tape, (batch.sequences, batch.target_tokens), dtypes.int64, "labels")
        return self._samples(tape, batch, dtype), labels

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        samples, labels = inputs
        hidden, features = self.body.forward(samples)
        last = hidden
        hidden = dropout(hidden, self.spec.final_dropout)
        with samples.tape.losing():
            logits = self.lm_head(hidden)
            ones = empty(samples.tape, samples.shape, dtypes.int64, "ones_like")
            lengths = empty(samples.tape, samples.shape[:1], dtypes.int64, "add")
            loss = ctc(logits, labels, self.spec.ctc_loss_reduction, self.spec.ctc_zero_infinity)
        del last, features, ones, lengths
        return loss, logits


class AudioClassification(_Heard):
    """The mean of all frames, projected, is classified (`Wav2Vec2ForSequenceClassification`)."""

    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        super().__init__(spec, build)
        size = spec.classifier_proj_size
        self.projector = build.linear("projector", spec.hidden_size, size, True, quantized=False)
        self.classifier = build.linear("classifier", size, build.labels, True, quantized=False)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        return self._samples(tape, batch, dtype), empty(tape, (batch.sequences,), dtypes.int64, "labels")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        samples, labels = inputs
        last, features = self.body.forward(samples)
        with samples.tape.losing():
            hidden = self.projector(last)
            pooled = mean(hidden, 1)
            logits = self.classifier(pooled)
            loss = cross_entropy(logits, labels)
        del last, features, hidden, pooled
        return loss, logits


HEADS = {"ctc": CTC, "audio-classification": AudioClassification}
