"""What a configuration of Parakeet says, and the frames that follow from it.

After transformers' configuration_parakeet.py and feature_extraction_parakeet.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from estimator.contract.job.audio import Audio
from estimator.families.spec import Activation, Depth, ModelSpec, Probability, Size

HOP = 160
"""Samples of a frame of a spectrogram (`hop_length` of its feature extractor)."""


class EncoderSpec(ModelSpec):
    """`scale_input`: whether frames are multiplied by the root of their width."""

    runs = False

    hidden_size: Size = 1024
    num_hidden_layers: Depth = 24
    num_attention_heads: Size = 8
    intermediate_size: Size = 4096
    hidden_act: Activation = "silu"
    attention_bias: bool = True
    convolution_bias: bool = True
    conv_kernel_size: Size = 9
    subsampling_factor: Annotated[int, Field(ge=2, le=2**10)] = 8
    subsampling_conv_channels: Size = 256
    num_mel_bins: Size = 80
    subsampling_conv_kernel_size: Size = 3
    subsampling_conv_stride: Size = 2
    dropout: Probability = 0.1
    dropout_positions: Probability = 0.0
    layerdrop: Probability = 0.1
    activation_dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    max_position_embeddings: Size | None = 5000
    scale_input: bool = True

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} heads")
        if self.subsampling_factor & (self.subsampling_factor - 1) or self.subsampling_conv_stride != 2:
            raise ValueError("subsampling_factor is a power of two, by convolutions of a stride of two")
        if self.subsampling_conv_kernel_size % 2 == 0 or self.conv_kernel_size % 2 == 0:
            raise ValueError("convolutions have kernels of an odd size, so that they keep their length")
        if self.num_mel_bins % self.subsampling_factor:
            raise ValueError(f"num_mel_bins {self.num_mel_bins} is not a multiple of {self.subsampling_factor}")
        return self

    @property
    def halvings(self) -> int:
        """Convolutions that halve time and frequencies."""
        return int(log2(self.subsampling_factor))

    def halved(self, frames: int) -> int:
        """Frames that are left of a spectrogram's."""
        for _ in range(self.halvings):
            frames = (frames - 1) // 2 + 1
        return frames


class ParakeetSpec(ModelSpec):
    """`hidden_size`, `num_hidden_layers` and `max_position_embeddings` are its encoder's."""

    made = frozenset({"hidden_size", "num_hidden_layers"})
    listens = True
    attentions = ("sdpa", "eager")
    last_vllm = "none"
    why_not_vllm = "its registry has no model that writes down what it hears frame by frame"
    in_sglang = "none"
    why_not_sglang = "it has no model that writes down what it hears frame by frame"

    encoder_config: EncoderSpec
    vocab_size: Size = 1025
    ctc_loss_reduction: Literal["sum", "mean"] = "mean"
    ctc_zero_infinity: bool = True

    @model_validator(mode="before")
    @classmethod
    def _encoder(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        made = dict(given)
        said = made.get("encoder_config") or {}
        if isinstance(said, Mapping):
            known = {key: said[key] for key in EncoderSpec.keys() & said.keys()}
            made["encoder_config"] = said = EncoderSpec.model_validate(known | {"model_type": "parakeet_encoder"})
        if isinstance(said, EncoderSpec):
            made["hidden_size"], made["num_hidden_layers"] = said.hidden_size, said.num_hidden_layers
            made["max_position_embeddings"] = None
        return made

    def config(self) -> dict[str, Any]:
        """With no layer left out."""
        own = self.model_dump(exclude={"hidden_size", "num_hidden_layers", "max_position_embeddings", "encoder_config"})
        return own | {"encoder_config": self.encoder_config.model_dump(mode="json") | {"layerdrop": 0.0}}

    def spectrogram(self, samples: int) -> int:
        """Frames of the spectrogram of so many samples, of which the last is filled up."""
        return samples // HOP + 1

    def frames(self, samples: int) -> int:
        """What the encoder makes of the frames that are of so many samples."""
        return self.encoder_config.halved(samples // HOP)

    def audio_tokens(self, audio: Audio) -> int:
        return self.frames(audio.samples) if audio.samples >= HOP else 0

    def masked(self, frames: int) -> int:
        """Frames of a clip that are masked: none are."""
        return 0
