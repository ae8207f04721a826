"""How wav2vec 2.0 and HuBERT hear: convolutions over samples, what projects them, and a convolution that knows places.

After transformers' modeling_wav2vec2.py and modeling_hubert.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.modules import ACTIVATIONS, Convolution
from estimator.families.wav2vec2_spec import Wav2Vec2Spec
from estimator.tape.dtypes import DType
from estimator.tape.normalization import group_norm, weight_norm
from estimator.tape.pointwise import dropout, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import narrow, transpose, unsqueeze


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
    """`Wav2Vec2FeatureEncoder`: samples as frames, [batch, channels, frames].

    Samples want gradients, that checkpoints work, unless a job names other parameters to be trained than the convolutions'
    (`freeze_feature_encoder`).
    """

    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        kinds = range(len(spec.conv_dim))  # of which each has a length of its own
        before = len(build.parameters)
        self.layers = build.layers(kinds, lambda number: ConvLayer(number, spec, build), "feature_extractor.conv_layers")
        self.frozen = build.trained is not None and not any(p.wanted for p in build.parameters[before:])

    def __call__(self, samples: Tensor) -> Tensor:
        hidden = unsqueeze(samples, 1)
        hidden.requires_grad = samples.tape.grad_enabled and not (samples.tape.evaluating or self.frozen)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Projection:
    """`Wav2Vec2FeatureProjection`."""

    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        size = spec.conv_dim[-1]
        normed = getattr(spec, "feat_proj_layer_norm", True)
        self.returns_normed = spec.returns_features
        self.norm = build.layer_norm("feature_projection.layer_norm", size) if normed else None
        self.projection = build.linear("feature_projection.projection", size, spec.hidden_size, True)
        self.dropout = spec.feat_proj_dropout

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the encoder gets, and what the model holds to its end."""
        out = hidden if self.norm is None else self.norm(hidden)
        held = out if self.returns_normed else hidden
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
