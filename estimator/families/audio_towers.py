"""Encoders of sound that are Whisper's: two convolutions over a spectrogram, and layers over its frames.

After transformers' modeling_voxtral.py and modeling_qwen2_audio.py (5.23).
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import model_validator

from estimator.contract.job.audio import Audio
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.spec import Depth, Size, called
from estimator.families.whisper import EncoderLayer, EncoderSpec
from estimator.tape import dtypes
from estimator.tape.pointwise import add, dropout, gelu, to
from estimator.tape.pooling import avg_pool1d
from estimator.tape.tensor import Tensor
from estimator.tape.views import transpose

HOP = 160
"""Samples of a frame of a spectrogram (`hop_length` of `WhisperFeatureExtractor`)."""


class AudioTowerSpec(EncoderSpec):
    """What a configuration leaves out has transformers' defaults."""

    modelled = {"encoder_layerdrop": (0,), "layerdrop": (0,), "scale_embedding": (False,)}
    runs = False
    wide_positions: ClassVar[bool] = False
    """Whether positions are held in float32, whatever type the model is loaded in (`_keep_in_fp32_modules_strict`)."""
    pooled: ClassVar[bool] = False
    """Whether two frames are averaged at the end."""

    hidden_size: Size = called("d_model", 1280)
    num_hidden_layers: Depth = called("encoder_layers", 32)
    encoder_attention_heads: Size = 20
    encoder_ffn_dim: Size = 5120
    num_mel_bins: Size = 128

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.hidden_size % self.encoder_attention_heads:
            raise ValueError(f"a width of {self.hidden_size} is not a multiple of {self.encoder_attention_heads} heads")
        return self

    def config(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude={"max_position_embeddings"})

    def frames(self, audio: Audio, most: int) -> int:
        """Frames of a clip's spectrogram, of which there are at most so many."""
        return min(most, -(-audio.samples // HOP))

    def tokens(self, frames: int) -> int:
        """Of a clip, where two frames become one token (`_get_feat_extract_output_lengths`)."""
        return (halved(frames) - 2) // 2 + 1


class Qwen2AudioEncoderSpec(AudioTowerSpec):
    pooled = True


class VoxtralEncoderSpec(AudioTowerSpec):
    wide_positions = True

    hidden_size: Size = 1280
    num_hidden_layers: Depth = 32
    encoder_attention_heads: Size = called("num_attention_heads", 20)
    encoder_ffn_dim: Size = called("intermediate_size", 5120)


SPECS = {"voxtral_encoder": VoxtralEncoderSpec, "qwen2_audio_encoder": Qwen2AudioEncoderSpec}


def halved(frames: int) -> int:
    """Frames after a convolution with a stride of two."""
    return (frames - 1) // 2 + 1


class AudioTower:
    """`VoxtralEncoder`, `Qwen2AudioEncoder`."""

    def __init__(self, spec: AudioTowerSpec, build: Builder):
        size = spec.hidden_size
        self.spec = spec
        self.conv1 = build.convolution("conv1", spec.num_mel_bins, size, (3,), padding=1, first=True)
        self.conv2 = build.convolution("conv2", size, size, (3,), stride=2, padding=1)
        wide = dtypes.float32 if spec.wide_positions else None
        self.embed_positions = build.parameter("embed_positions.weight", (spec.max_source_positions, size), wide, trainable=False)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: EncoderLayer(spec, build))
        self.layer_norm = build.layer_norm("layer_norm", size)

    def __call__(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Last hidden states, [spectrograms, frames, width]."""
        cast = to(features, self.conv1.weight.dtype)
        embeds = gelu(self.conv1(cast))
        embeds = gelu(self.conv2(embeds))
        embeds = transpose(embeds, 1, 2)
        hidden = add(embeds, self.embed_positions)
        hidden = to(hidden, embeds.dtype) if self.spec.wide_positions else hidden
        hidden = dropout(hidden, self.spec.dropout)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        hidden = transpose(avg_pool1d(transpose(hidden, 1, 2), 2), 1, 2) if self.spec.pooled else hidden
        hidden = self.layer_norm(hidden)
        del embeds, cast
        return hidden


HEADS = {"features": counted(AudioTower)}
